#!/bin/sh
# Slurm's TaskProlog, which runs as the user before each rank, and whose output sets the rank's
# variables: the ranks of a step start agents of their own (docs/guide/guide.md, "Machines without
# agents"), unless the node has an agent or the user has named one.
PATH=/usr/bin:/bin:$PATH
secret=/run/cool-slurm/$SLURM_JOB_ID
# The numbers of batch scripts and interactive steps, which are no ranks, begin here (slurm.h).
first_special_step=4294967280
for agent in /run/cool/*.sock; do
    [ ! -S "$agent" ] || exit 0
done
if [ -n "${COOL_SOCKET:-}${COOL_MASTER:-}" ] || [ ! -r "$secret" ] || [ "$SLURM_STEP_ID" -ge $first_special_step ]; then
    exit 0
fi
master=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
# Steps that run at the same time need different ports.
echo "export COOL_MASTER=$master:$((10000 + (SLURM_JOB_ID * 16 + SLURM_STEP_ID) % 7000))"
echo "export COOL_MASTER_KEY=$(cat "$secret")"

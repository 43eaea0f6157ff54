#!/bin/sh
# Slurm's Prolog, which runs as root on each node of a job: stores a secret that only the job's user can
# read. task-prolog.sh passes it to the ranks, and epilog.sh removes it. The secret follows from a key
# that all nodes share. To create the key on one node, and then copy it to the others:
#   (umask 077; openssl rand -hex 32 >/etc/cool/slurm-key)
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
key=$(cat /etc/cool/slurm-key)
mkdir -p -m 711 /run/cool-slurm
# The key is no argument of a program, because users can read these. It is hashed on both sides of the
# job, because SHA-256 alone would let users compute the secrets of jobs with longer names.
secret=$(printf '%s %s %s %s' "$key" "$SLURM_JOB_ID" "$SLURM_JOB_UID" "$key" | sha256sum | cut -d ' ' -f 1)
file=$(mktemp /run/cool-slurm/XXXXXXXXXX)
printf '%s' "$secret" >"$file"
chown "$SLURM_JOB_UID" "$file"
mv "$file" "/run/cool-slurm/$SLURM_JOB_ID"

#!/bin/sh
# Slurm's Epilog, which runs as root on each node after a job: removes the job's secret (prolog.sh).
rm -f "/run/cool-slurm/$SLURM_JOB_ID"

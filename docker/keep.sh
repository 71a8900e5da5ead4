#!/bin/sh
# Keeps the views of a project until the container stops, with the job's log as its output.
set -eu

headwater up "$@"
trap 'headwater down "$@"; exit 0' TERM INT
tail -n 50 -F "$HEADWATER_HOME/log/projections.log" &
wait

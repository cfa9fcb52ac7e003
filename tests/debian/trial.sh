#!/bin/sh
# Looks at the VM of the node, and kills the agent, whose successor takes the VM over.
# getty hangs up whoever has the port open.
say() {
	echo "$@" >/dev/ttyS0
}

# Names of the processes in the group of the VM.
names() {
	while read -r pid; do cat "/proc/$pid/comm"; done <"$group/cgroup.procs"
}

until grep -qs "hello from the guest" /var/lib/machines/*/console.log; do sleep 1; done
group=$(echo /sys/fs/cgroup/meshd-vm-*)
say "TRIAL-NAMES" $(names)
say "TRIAL-GROUP $(names | grep -c '^qemu-system') $(cat "$group/pids.max")"
systemctl kill --kill-who=main --signal=KILL mesh-agent.service
until journalctl --quiet --boot --unit mesh-agent | grep -q "took over a running VM"; do sleep 1; done
say "TRIAL-TAKEN $(names | grep -c '^qemu-system')"

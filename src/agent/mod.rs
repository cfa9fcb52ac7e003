//! Step N, the node: what mesh-agent does on a machine that has booted.

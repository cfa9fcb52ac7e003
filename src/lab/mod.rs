//! Step 8, lab: a rack in a box: a network namespace, a bridge, QEMU nodes.

//! The boot plane over HTTP: script, kernel, initramfs, packages, overlay, modloop.

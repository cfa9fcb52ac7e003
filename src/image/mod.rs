//! Step 5, image: a recipe becomes kernel, initramfs, modloop and packages.

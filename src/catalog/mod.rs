//! Step 3, catalog: images and overlays, read into one immutable, digest-checked snapshot.

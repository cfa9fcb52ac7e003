//! Step 4, boot: (site, catalog, node, request) -> what this machine boots, or why not; then the iPXE text of it.

//! What all servers share: site, catalog, store, keys; and one file for each thing that can happen in the boot chain.

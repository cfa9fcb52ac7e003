//! Step 5, overlay: plan -> template -> archive. The same input gives the same bytes.

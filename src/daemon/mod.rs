//! Step 7, daemon: bind everything, spawn in chain order, drain with a deadline.

//! Step 3, store: the only owner of durable state.

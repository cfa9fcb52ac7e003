//! Tests of the agent plane.

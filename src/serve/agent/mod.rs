//! The agent plane: enrolment, the pending connection, and the link.

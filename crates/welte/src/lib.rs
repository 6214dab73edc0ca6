//! Welte: the engine that people link.

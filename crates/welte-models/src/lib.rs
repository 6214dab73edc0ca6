//! What a model is, as data, and the one forward pass for all of them.

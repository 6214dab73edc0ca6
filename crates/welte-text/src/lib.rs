//! Tokenizers, chat templates and the output splitter.

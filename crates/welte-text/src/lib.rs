//! Tokenizers, chat templates and the output splitter.
//!
//! ```
//! use welte_text::{ChatTemplate, Message, Splitter};
//!
//! let template = ChatTemplate::new("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "", "")?;
//! let prompt = template.render(&[Message::new("user", "Hello")], false)?;
//! assert_eq!(prompt, "user: Hello\n");
//!
//! let mut splitter = Splitter::new(vec!["END".to_string()]);
//! assert_eq!(splitter.push(b"so far E").text, "so far ");
//! let split = splitter.push(b"ND and more");
//! assert_eq!(split.stopped.as_deref(), Some("END"));
//! # Ok::<(), welte_text::Error>(())
//! ```

mod base64;
mod bpe;
pub mod calls;
mod channels;
mod conversation;
mod error;
mod export;
mod generic;
mod growth;
mod infill;
mod json;
pub mod pretokenizers;
mod python;
mod splitter;
mod stops;
mod tekken;
mod template;
mod token;
mod tokenizer;
mod vocabulary;

pub use base64::from_base64;
pub use channels::{Channels, FINAL, Said};
pub use conversation::{Clip, Frame, Image, ImageSource, Message, ToolCall, Video};
pub use error::Error;
pub use splitter::{Split, Splitter};
pub use stops::StopMatcher;
pub use template::{ChatTemplate, RenderOptions, Rendered, TemplateSupport};
pub use token::{InfillTokens, TokenType};
pub use tokenizer::Tokenizer;
pub use vocabulary::Vocabulary;

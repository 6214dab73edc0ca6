//! Pictures: from the bytes of a file to the rows that an encoder reads, and what stands in the prompt for them.
//!
//! [`decode`] turns a file into pixels. A [`Processor`] resizes them and cuts them into tiles as its family does, and
//! [`Processor::rows`] turns a tile into rows. [`Prepared::layout`] says what takes the place of the picture in the prompt.

mod decode;
mod film;
mod layout;
mod marks;
mod processor;
mod resize;
mod rows;
mod tiff;

pub use decode::{Error, Limits, Pixels, decode, decoding_memory};
pub use film::{Film, Scene, Words};
pub use layout::Piece;
pub use marks::Marks;
pub use processor::{Growth, Method, Prepared, Processor, Tile, Values};
pub use resize::{Filter, resize};
pub use rows::Rows;

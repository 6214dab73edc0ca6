//! How families mark pictures in a prompt.

/// How a family marks pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Idefics 3 and SmolVLM: each tile has its row and column before it.
    Tiles,
    /// The features stand between two texts. Parts of a picture follow the whole one after some words.
    Between {
        /// What the template writes for a picture.
        placeholder: &'static str,
        /// What stands before the features, and after them.
        around: [&'static str; 2],
        /// The features attend to each other.
        both_ways: bool,
    },
    /// Qwen and PaddleOCR-VL: the template marks pictures, and features have the axes of their row and column. The placeholder.
    Axes(&'static str),
    /// Pixtral and Mistral 3: a token ends each line of features.
    Lines,
    /// LFM2-VL: tiles have their row and column before them, if there are several, and all are between two tokens.
    Grid,
    /// InternVL: all tiles between two tokens.
    Canvas,
    /// MiniCPM-V: the whole picture, then the slices of each line, all between two tokens.
    Slices {
        /// The picture's number among those of the prompt stands before it.
        numbered: bool,
        /// What the template writes for a picture.
        placeholder: &'static str,
    },
    /// LLaVA and LLaVA-NeXT: features alone, the whole picture's first.
    Lined,
}

impl Marks {
    /// Gemma 3.
    pub const GEMMA3: Marks = Marks::Between {
        placeholder: "<start_of_image>",
        around: ["\n\n<start_of_image>", "<end_of_image>\n\n"],
        both_ways: true,
    };

    /// What stands before the picture of this number in a prompt, from 0 on.
    pub fn number(self, number: usize) -> Option<String> {
        let numbered = matches!(self, Marks::Slices { numbered: true, .. });
        numbered.then(|| format!("<image_id>{number}</image_id>"))
    }

    /// What the family's chat template writes for a picture. The layout takes its place.
    pub fn placeholder(self) -> &'static str {
        match self {
            Marks::Tiles | Marks::Grid | Marks::Lined => "<image>",
            Marks::Canvas => "<IMG_CONTEXT>",
            Marks::Slices { placeholder, .. }
            | Marks::Between { placeholder, .. }
            | Marks::Axes(placeholder) => placeholder,
            Marks::Lines => "[IMG]",
        }
    }
}

//! Chooses the files of a model.

/// Quantisations to try when none is named, best first.
const DEFAULTS: [&str; 14] = [
    "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "IQ4_NL", "Q4_1", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0",
    "Q3_K_M", "BF16", "F16", "F32",
];

/// Files that belong to a directory of weights beside these.
const COMPANIONS: [&str; 19] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tekken.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "sparse_linear.pt",
    "colbert_linear.pt",
];

/// Files of a module of sentence-transformers: how rows are pooled, and a dense layer.
const OF_MODULES: [&str; 3] = ["config.json", "model.safetensors", "pytorch_model.bin"];

/// Formats of encoders of images, best first: every device computes F16.
const ENCODER_FORMATS: [&str; 4] = ["F16", "BF16", "Q8_0", "F32"];

const INDEX: &str = "model.safetensors.index.json";
/// What older models have in place of safetensors.
const TORCH: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// True for a file of a module, whose folder has a name such as `1_Pooling`.
fn is_of_module(name: &str) -> bool {
    let numbered = |folder: &str| {
        let number = folder.split_once('_').map(|(number, _)| number);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let parts = name.split_once('/');
    parts.is_some_and(|(folder, file)| numbered(folder) && OF_MODULES.contains(&file))
}

/// Files to download, and the one to open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Their names, sorted.
    pub(crate) files: Vec<String>,
    /// The file to open; without one, the directory is opened.
    pub(crate) main: Option<String>,
    /// True if this is the requested or usual file, false if it is a substitute.
    pub(crate) exact: bool,
}

/// Chooses from the names of all files. The error lists what is available.
pub(crate) fn choose(names: &[&str], wanted: Option<&str>) -> Result<Choice, String> {
    let groups = groups(names);
    match wanted {
        Some(wanted) => match by_file(names, &groups, wanted)? {
            Some(choice) => Ok(choice),
            None if groups.is_empty() => Err(format!(
                "there is no file {wanted} and no GGUF file with the quantisation {wanted}; available: {}",
                listed(names.iter().copied())
            )),
            None => by_quant(&groups, wanted)?.ok_or_else(|| {
                format!(
                    "there is no GGUF file with the quantisation {wanted} and no file of that name; available: {}",
                    listed(mains(&groups))
                )
            }),
        },
        None if !groups.is_empty() => default(&groups),
        None => directory(names),
    }
}

/// The encoder of images that belongs to a GGUF file of the repository, if it has one.
pub(crate) fn encoder<'a>(names: &[&'a str], main: &str) -> Option<&'a str> {
    if !main.ends_with(".gguf") || is_encoder(main) {
        return None;
    }
    let folder = |name: &str| {
        name.rsplit_once('/')
            .map_or(String::new(), |(f, _)| f.into())
    };
    let own = folder(main);
    // Beside the file, or above it.
    let above = |name: &str| {
        let folder = folder(name);
        let rest = own.strip_prefix(&folder);
        rest.is_some_and(|rest| folder.is_empty() || rest.is_empty() || rest.starts_with('/'))
    };
    let rank = |name: &&'a str| -> (usize, usize, &'a str) {
        let (stem, _, _) = split(name).unwrap_or((name, 1, 1));
        let format = ENCODER_FORMATS.iter().position(|f| is_word(stem, f));
        let distance = own.len() - folder(name).len();
        (distance, format.unwrap_or(ENCODER_FORMATS.len()), *name)
    };
    let all = names.iter().copied();
    let encoders = all.filter(|name| is_encoder(name) && above(name));
    encoders.min_by_key(rank)
}

/// True for the file of an encoder of images.
pub(crate) fn is_encoder(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.ends_with(".gguf") && base.to_ascii_lowercase().contains("mmproj")
}

/// A GGUF model: one file, or the parts of a split one in order.
struct Group<'a> {
    /// The name without part number and extension.
    stem: &'a str,
    files: Vec<&'a str>,
    /// The number of files when complete.
    parts: usize,
}

/// The stem of a GGUF file, its part number and the number of parts.
fn split(name: &str) -> Option<(&str, usize, usize)> {
    let stem = name.strip_suffix(".gguf")?;
    let part = || {
        let (head, parts) = stem.rsplit_once("-of-")?;
        let (head, part) = head.rsplit_once('-')?;
        let number = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
        let (part, parts) = (number(part)?, number(parts)?);
        (1..=parts).contains(&part).then_some((head, part, parts))
    };
    Some(part().unwrap_or((stem, 1, 1)))
}

/// The GGUF models among the files, without vision projectors and importance matrices.
fn groups<'a>(names: &[&'a str]) -> Vec<Group<'a>> {
    let mut sorted: Vec<&str> = names.to_vec();
    sorted.sort_unstable();
    let mut groups: Vec<Group> = Vec::new();
    for name in sorted {
        let base = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let named = || {
            DEFAULTS
                .iter()
                .any(|q| base.contains(&q.to_ascii_lowercase()))
        };
        if is_encoder(name) || base.contains("imatrix") && !named() {
            continue;
        }
        let Some((stem, _, parts)) = split(name) else {
            continue;
        };
        match groups
            .iter_mut()
            .find(|g| g.stem == stem && g.parts == parts)
        {
            Some(group) => group.files.push(name),
            None => groups.push(Group {
                stem,
                files: vec![name],
                parts,
            }),
        }
    }
    groups
}

/// True if the name contains this quantisation as a word: Q4_K is not Q4_K_M, F16 is not BF16.
fn is_word(name: &str, quant: &str) -> bool {
    let (name, quant) = (name.to_ascii_lowercase(), quant.to_ascii_lowercase());
    name.match_indices(&quant).any(|(at, found)| {
        let before = name[..at].chars().next_back();
        let after = name[at + found.len()..].chars().next();
        !before.is_some_and(|c| c.is_ascii_alphanumeric())
            && !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

impl Group<'_> {
    fn is(&self, quant: &str) -> bool {
        is_word(self.stem, quant)
    }

    fn choice(&self, exact: bool) -> Result<Choice, String> {
        if self.files.len() != self.parts {
            return Err(format!(
                "{} has {} of its {} parts",
                self.stem,
                self.files.len(),
                self.parts
            ));
        }
        Ok(Choice {
            files: self.files.iter().map(ToString::to_string).collect(),
            main: Some(self.files[0].to_string()),
            exact,
        })
    }
}

/// By path, or by file name if only one file has it.
fn by_file(names: &[&str], groups: &[Group], wanted: &str) -> Result<Option<Choice>, String> {
    let last = |name: &str| name.rsplit('/').next() == Some(wanted);
    let same: Vec<&str> = match names.iter().find(|n| **n == wanted) {
        Some(name) => vec![name],
        None => names.iter().copied().filter(|n| last(n)).collect(),
    };
    let name = match same.as_slice() {
        [] => return Ok(None),
        [name] => *name,
        _ => {
            return Err(format!(
                "more than one file is called {wanted}; give the path: {}",
                listed(same)
            ));
        }
    };
    match groups.iter().find(|g| g.files.contains(&name)) {
        Some(group) => group.choice(true).map(Some),
        None => Ok(Some(Choice {
            files: vec![name.to_string()],
            main: Some(name.to_string()),
            exact: true,
        })),
    }
}

fn by_quant(groups: &[Group], quant: &str) -> Result<Option<Choice>, String> {
    let mut found: Vec<&Group> = groups.iter().filter(|g| g.is(quant)).collect();
    if found.len() > 1 {
        // Some repositories hold a plain and a dynamic file (UD) of the same quantisation. The plain one is meant.
        let dynamic = format!("UD-{quant}");
        let plain: Vec<&Group> = found.iter().copied().filter(|g| !g.is(&dynamic)).collect();
        if plain.len() == 1 {
            found = plain;
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [group] => group.choice(true).map(Some),
        _ => Err(format!(
            "more than one file is {quant}; name one of them: {}",
            listed(found.iter().map(|g| g.files[0]))
        )),
    }
}

fn default(groups: &[Group]) -> Result<Choice, String> {
    for (i, quant) in DEFAULTS.iter().enumerate() {
        if let Some(choice) = by_quant(groups, quant)? {
            return Ok(Choice {
                exact: i == 0,
                ..choice
            });
        }
    }
    match groups {
        [only] => only.choice(false),
        _ => Err(format!(
            "has no {} file and no other usual quantisation; name one of them: {}",
            DEFAULTS[0],
            listed(mains(groups))
        )),
    }
}

/// Configuration, tokenizer and safetensors. Pickles and weights of other frameworks are never chosen.
fn directory(names: &[&str]) -> Result<Choice, String> {
    let weights = |name: &&&str| name.ends_with(".safetensors") && !name.contains('/');
    let mut files: Vec<&str> = names.iter().filter(weights).copied().collect();
    // Some repositories hold the same weights twice, under two names.
    if files.iter().any(|n| n.starts_with("model")) {
        files.retain(|n| n.starts_with("model"));
    }
    let is_part = |name: &&&str| name.starts_with("pytorch_model-") && name.ends_with(".bin");
    // One file of PyTorch, or else an index and parts.
    if files.is_empty()
        && let Some(found) = TORCH.iter().find(|name| names.contains(name))
    {
        files.push(found);
        if *found == TORCH[1] {
            files.extend(names.iter().filter(is_part));
        }
    }
    if files.is_empty() || !names.contains(&"config.json") {
        return Err(format!(
            "has neither a GGUF file nor config.json with safetensors or {}; available: {}",
            TORCH[0],
            listed(names.iter().copied())
        ));
    }
    files.extend(
        COMPANIONS
            .iter()
            .chain([&INDEX])
            .filter(|n| names.contains(n)),
    );
    if names.contains(&"modules.json") {
        files.extend(names.iter().filter(|name| is_of_module(name)));
    }
    files.sort_unstable();
    Ok(Choice {
        files: files.into_iter().map(str::to_string).collect(),
        main: None,
        exact: true,
    })
}

/// The models that can be opened.
pub(crate) fn openable(names: &[&str]) -> Vec<Choice> {
    let groups = groups(names);
    if groups.is_empty() {
        return directory(names).into_iter().collect();
    }
    groups.iter().filter_map(|g| g.choice(true).ok()).collect()
}

/// True if there is a GGUF model among the files.
pub(crate) fn has_models(names: &[&str]) -> bool {
    !groups(names).is_empty()
}

fn mains<'a>(groups: &'a [Group]) -> impl Iterator<Item = &'a str> {
    groups.iter().map(|g| g.files[0])
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MOST: usize = 30;
    let names: Vec<&str> = names.into_iter().collect();
    let shown = names[..names.len().min(MOST)].join(", ");
    match names.len() {
        0 => "nothing".to_string(),
        n if n > MOST => format!("{shown} and {} more", n - MOST),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTS: [&str; 9] = [
        "README.md",
        "mmproj-model-f16.gguf",
        "M-1B-Q4_K_M.gguf",
        "M-1B-Q4_K_S.gguf",
        "M-1B-UD-Q4_K_XL.gguf",
        "M-1B-IQ4_XS.gguf",
        "M-1B-UD-IQ4_XS.gguf",
        "M-1B-BF16.gguf",
        "M-1B-Q8_0.gguf",
    ];

    fn main_of(names: &[&str], wanted: Option<&str>) -> String {
        choose(names, wanted)
            .unwrap_or_else(|e| panic!("{e}"))
            .main
            .unwrap_or_default()
    }

    #[test]
    fn a_quantisation_is_a_word_of_the_name() {
        for (wanted, file) in [
            ("Q4_K_M", "M-1B-Q4_K_M.gguf"),
            ("q8_0", "M-1B-Q8_0.gguf"),
            ("Q4_K_XL", "M-1B-UD-Q4_K_XL.gguf"),
            ("IQ4_XS", "M-1B-IQ4_XS.gguf"),
            ("UD-IQ4_XS", "M-1B-UD-IQ4_XS.gguf"),
            ("M-1B-BF16.gguf", "M-1B-BF16.gguf"),
        ] {
            assert_eq!(main_of(&QUANTS, Some(wanted)), file);
        }
        assert_eq!(main_of(&QUANTS, None), "M-1B-Q4_K_M.gguf");
        for wanted in ["Q4_K", "F16", "Q2_K", "nothing.gguf"] {
            let error = choose(&QUANTS, Some(wanted)).unwrap_err();
            assert!(
                error.contains("M-1B-Q8_0.gguf") && !error.contains("mmproj"),
                "{wanted}: {error}"
            );
        }
    }

    #[test]
    fn an_encoder_belongs_to_the_model_beside_it() {
        let names = [
            "M-Q4_K_M.gguf",
            "mmproj-BF16.gguf",
            "mmproj-F32.gguf",
            "sub/M-Q8_0.gguf",
            "sub/M-mmproj-f16.gguf",
            "other/mmproj-F16.gguf",
        ];
        assert_eq!(encoder(&names, names[0]), Some("mmproj-BF16.gguf"));
        assert_eq!(encoder(&names, names[3]), Some("sub/M-mmproj-f16.gguf"));
        assert_eq!(
            encoder(&names, "third/M-F16.gguf"),
            Some("mmproj-BF16.gguf")
        );
        assert_eq!(encoder(&names[..1], names[0]), None);
        assert_eq!(encoder(&names, names[2]), None);
        assert_eq!(
            encoder(&["mmproj-Q8_0.gguf", "mmproj-x.gguf"], "m.gguf"),
            Some("mmproj-Q8_0.gguf")
        );
    }

    #[test]
    fn without_the_usual_one_the_next_best_is_taken() {
        let names = ["x.Q8_0.gguf", "x.Q6_K.gguf"];
        assert_eq!(main_of(&names, None), "x.Q6_K.gguf");
        assert!(!choose(&names, None).unwrap().exact);
        assert_eq!(main_of(&["some.gguf"], None), "some.gguf");
        let made = ["m-imatrix.gguf", "m-Q6_K-imatrix.gguf"];
        assert_eq!(main_of(&made, None), made[1]);
        assert!(
            choose(&["a.gguf", "b.gguf"], None)
                .unwrap_err()
                .contains("a.gguf, b.gguf")
        );
        let two = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"];
        assert!(choose(&two, None).unwrap_err().contains("name one of them"));
    }

    #[test]
    fn all_parts_of_a_split_file_belong_together() {
        let names = [
            "Q8_0/m-Q8_0-00002-of-00002.gguf",
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
            "m-Q4_0-00001-of-00003.gguf",
            "m-Q4_0-00003-of-00003.gguf",
        ];
        for wanted in [
            "Q8_0",
            "m-Q8_0-00002-of-00002.gguf",
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
        ] {
            let choice = choose(&names, Some(wanted)).unwrap();
            assert_eq!(choice.files, [names[1], names[0]], "{wanted}");
            assert_eq!(choice.main.as_deref(), Some(names[1]));
        }
        let error = choose(&names, Some("Q4_0")).unwrap_err();
        assert!(error.contains("2 of its 3 parts"), "{error}");
    }

    #[test]
    fn a_directory_is_its_configuration_tokenizer_and_safetensors() {
        let names = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "original/model.safetensors",
            "preprocessor_config.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "chat_template.jinja",
        ];
        let choice = choose(&names, None).unwrap();
        assert_eq!(
            choice.files,
            [
                "chat_template.jinja",
                "config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "preprocessor_config.json",
                "tokenizer.json",
            ]
        );
        assert_eq!(choice.main, None);
        let error = choose(&names, Some("Q4_0")).unwrap_err();
        assert!(
            error.contains("no GGUF file") && error.contains("config.json"),
            "{error}"
        );
        assert!(choose(&["pytorch_model.bin"], None).is_err());
        assert!(choose(&[], None).is_err());
    }

    /// BGE-M3's repository.
    #[test]
    fn a_directory_has_the_files_of_its_modules() {
        let names = [
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "2_Normalize/x.json",
            "colbert_linear.pt",
            "config.json",
            "config_sentence_transformers.json",
            "imgs/1_x/config.json",
            "imgs/config.json",
            "modules.json",
            "onnx/config.json",
            "pytorch_model.bin",
            "rng_state.pth",
            "sentence_bert_config.json",
            "sparse_linear.pt",
            "tokenizer.json",
            "training_args.bin",
        ];
        let choice = choose(&names, None).unwrap();
        let left_out = [2, 6, 7, 9, 11, 15].map(|i| names[i]);
        let wanted: Vec<&str> = names
            .into_iter()
            .filter(|name| !left_out.contains(name))
            .collect();
        assert_eq!(choice.files, wanted);
        let parts = [
            "config.json",
            "pytorch_model-00001-of-00002.bin",
            "pytorch_model-00002-of-00002.bin",
            "pytorch_model.bin.index.json",
        ];
        assert_eq!(choose(&parts, None).unwrap().files, parts);
        // One file needs neither an index nor parts.
        let single = [&parts[..], &["pytorch_model.bin"]].concat();
        assert_eq!(
            choose(&single, None).unwrap().files,
            ["config.json", "pytorch_model.bin"]
        );
        // Safetensors come first, and modules belong to a list of them.
        let both = [
            "1_Pooling/config.json",
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
        ];
        assert_eq!(choose(&both, None).unwrap().files, both[1..3]);
    }

    #[test]
    fn long_lists_say_how_much_they_leave_out() {
        let names: Vec<String> = (0..33).map(|i| format!("f{i}")).collect();
        let of = |n: usize| listed(names[..n].iter().map(String::as_str));
        assert_eq!(of(0), "nothing");
        assert_eq!(of(2), "f0, f1");
        assert!(of(30).ends_with(", f29"));
        assert!(of(31).ends_with(", f29 and 1 more"));
        assert!(of(33).ends_with(", f29 and 3 more"));
    }
}

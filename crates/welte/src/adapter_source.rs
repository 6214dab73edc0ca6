//! An adapter to load, as a command line names it.

use std::path::PathBuf;
use std::str::FromStr;

/// An adapter to load.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// What requests call it.
    pub name: String,
    /// A GGUF file, or a directory of PEFT.
    pub path: PathBuf,
    /// What it adds is multiplied by this.
    pub scale: f32,
    /// It was given without a name: it is for all requests that choose none.
    pub for_all: bool,
}

/// `NAME=PATH`, `NAME=PATH:SCALE`, `PATH` or `PATH:SCALE`. Without a name it has that of its file or directory.
impl FromStr for AdapterSource {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterSource, String> {
        let (name, rest) = match text.split_once('=') {
            Some(("", _)) => return Err("the name before = is empty".into()),
            Some((name, rest)) if !name.contains(['/', '\\']) => (Some(name), rest),
            _ => (None, text),
        };
        let scaled = rest.rsplit_once(':');
        let scaled = scaled.and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (path, scale) = scaled.unwrap_or((rest, 1.0));
        if path.is_empty() {
            return Err("names no file".into());
        }
        if !scale.is_finite() {
            return Err(format!("the scale {scale} is not a number"));
        }
        let path = PathBuf::from(path);
        let stem = || match path.is_dir() {
            true => path.file_name(),
            false => path.file_stem(),
        };
        let stem = || stem().map(|stem| stem.to_string_lossy().into_owned());
        let own = name.map(str::to_string).or_else(stem);
        Ok(AdapterSource {
            name: own.ok_or("names no file")?,
            path,
            scale,
            for_all: name.is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_from_text() {
        let source = |text: &str| text.parse::<AdapterSource>().unwrap();
        let fields = |s: AdapterSource| (s.name, s.path, s.scale, s.for_all);
        let path = PathBuf::from;
        let cases = [
            ("fox=dir/fox.gguf", "fox", "dir/fox.gguf", 1.0, false),
            ("fox=fox.gguf:0.5", "fox", "fox.gguf", 0.5, false),
            ("dir/fox.gguf", "fox", "dir/fox.gguf", 1.0, true),
            ("dir/fox.gguf:-2", "fox", "dir/fox.gguf", -2.0, true),
            ("c:/dir/a=b.gguf", "a=b", "c:/dir/a=b.gguf", 1.0, true),
        ];
        for (text, name, file, scale, for_all) in cases {
            let wanted = (name.to_string(), path(file), scale, for_all);
            assert_eq!(fields(source(text)), wanted, "{text}");
        }
        for wrong in ["", "=a", "a=", "a=b:inf", ":1"] {
            assert!(wrong.parse::<AdapterSource>().is_err(), "{wrong}");
        }
    }
}

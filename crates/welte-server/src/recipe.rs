//! Models that users create from others: a system prompt, parameters, a chat template and first messages over a base. They are
//! written as Ollama's Modelfile, and kept as JSON in a folder.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use welte::Message;

/// The longest name of a created model, and the largest file of one, in bytes.
const LONGEST_NAME: usize = 100;
const LARGEST: u64 = 8 << 20;

/// How a model is created from another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Recipe {
    /// The base: a file, a folder, or a name that the creator resolves.
    pub from: String,
    /// The system message of conversations without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// A chat template in place of the base's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Settings of requests that do not choose their own, by Ollama's names.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// What every conversation begins with, after the system message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Turn>,
    /// Terms of use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub license: Vec<String>,
}

/// A message of a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Recipe {
    /// Reads a Modelfile. Errors name the line.
    pub fn parse(text: &str) -> Result<Recipe, String> {
        let mut recipe = Recipe::default();
        Recipe::read(text, &mut recipe)?;
        if recipe.from.is_empty() {
            return Err("FROM is missing; it names the model to start from".to_string());
        }
        recipe.check()?;
        Ok(recipe)
    }

    /// Reads the instructions of a Modelfile, without a look at what they say together.
    fn read(text: &str, recipe: &mut Recipe) -> Result<(), String> {
        let mut lines = Lines {
            rest: text.strip_prefix('\u{feff}').unwrap_or(text),
            number: 0,
        };
        while let Some((number, word, rest)) = lines.instruction() {
            let at = |problem: String| format!("line {number}: {problem}");
            let mut value = |rest| lines.value(rest).map_err(at);
            match word.to_ascii_uppercase().as_str() {
                "FROM" if !recipe.from.is_empty() => {
                    return Err(at("FROM is there twice".to_string()));
                }
                "FROM" => recipe.from = value(rest)?,
                "SYSTEM" => recipe.system = Some(value(rest)?),
                "TEMPLATE" => recipe.template = Some(value(rest)?),
                "LICENSE" => recipe.license.push(value(rest)?),
                "PARAMETER" => {
                    let (name, rest) = split(rest);
                    recipe.set(name, value(rest)?);
                }
                "MESSAGE" => {
                    let (role, rest) = split(rest);
                    let (role, content) = (role.to_string(), value(rest)?);
                    recipe.messages.push(Turn { role, content });
                }
                "ADAPTER" => return Err(at("ADAPTER is not supported yet".to_string())),
                other => {
                    return Err(at(format!(
                        "{other}: use FROM, SYSTEM, TEMPLATE, PARAMETER, MESSAGE or LICENSE"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Sets a parameter as Modelfiles write it. `stop` collects texts.
    fn set(&mut self, name: &str, text: String) {
        let value = match serde_json::from_str(&text) {
            Ok(value @ (Value::Bool(_) | Value::Number(_))) if name != "stop" => value,
            _ => text.into(),
        };
        if name != "stop" {
            self.parameters.insert(name.to_string(), value);
            return;
        }
        let stops = self
            .parameters
            .entry(name)
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(stops) = stops {
            stops.push(value);
        }
    }

    /// The context that it asks for, in tokens.
    pub fn context(&self) -> Option<u32> {
        self.parameters.get("num_ctx")?.as_u64()?.try_into().ok()
    }

    /// Whether answers have a seed of their own.
    pub fn has_seed(&self) -> bool {
        self.parameters.contains_key("seed")
    }

    /// The messages that a conversation begins with.
    pub fn opening(&self) -> impl Iterator<Item = Message> {
        let system = self.system.iter().filter(|text| !text.is_empty());
        let system = system.map(|text| Message::new("system", text.as_str()));
        let turns = self.messages.iter();
        system.chain(turns.map(|turn| Message::new(turn.role.as_str(), turn.content.as_str())))
    }

    /// A conversation with what it begins with. Its own system message comes in place of ours.
    pub(crate) fn opened<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        let own = messages
            .iter()
            .take_while(|message| message.role == "system")
            .count();
        let opening = self
            .opening()
            .filter(|message| own == 0 || message.role != "system");
        let opening: Vec<Message> = opening.collect();
        if opening.is_empty() {
            return Cow::Borrowed(messages);
        }
        let (systems, rest) = messages.split_at(own);
        [systems, &opening, rest].concat().into()
    }

    /// Names and values of the parameters.
    pub(crate) fn parameters_as_text(&self) -> impl Iterator<Item = String> {
        self.parameters.iter().flat_map(|(name, value)| {
            let all = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            all.iter().map(move |value| {
                let text = value.as_str().map_or_else(|| value.to_string(), quoted);
                format!("{name} {text}")
            })
        })
    }

    /// This recipe over that of its base.
    pub fn over(self, base: &Recipe) -> Recipe {
        let mut parameters = base.parameters.clone();
        parameters.extend(self.parameters);
        let or = |own: Vec<Turn>, base: &Vec<Turn>| if own.is_empty() { base.clone() } else { own };
        Recipe {
            from: base.from.clone(),
            system: self.system.or_else(|| base.system.clone()),
            template: self.template.or_else(|| base.template.clone()),
            parameters,
            messages: or(self.messages, &base.messages),
            license: base.license.iter().cloned().chain(self.license).collect(),
        }
    }
}

/// As a Modelfile.
impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FROM {}", quoted(&self.from))?;
        for (word, text) in [("SYSTEM", &self.system), ("TEMPLATE", &self.template)] {
            if let Some(text) = text {
                writeln!(f, "{word} {}", quoted(text))?;
            }
        }
        for line in self.parameters_as_text() {
            writeln!(f, "PARAMETER {line}")?;
        }
        for Turn { role, content } in &self.messages {
            writeln!(f, "MESSAGE {role} {}", quoted(content))?;
        }
        self.license
            .iter()
            .try_for_each(|text| writeln!(f, "LICENSE {}", quoted(text)))
    }
}

/// A text as [`Lines::value`] reads it: as it is, in triple quotes, or as JSON if a line of it ends in such quotes.
fn quoted(text: &str) -> String {
    let plain = [text.to_string(), format!("\"\"\"{text}\"\"\"")];
    let mut readable = plain.into_iter().filter(|written| {
        let mut lines = Lines {
            rest: written,
            number: 0,
        };
        let first = lines.next().unwrap_or_default();
        let read = lines.value(first).is_ok_and(|read| read == text);
        read && lines.rest.is_empty() && first.trim_start() == first
    });
    readable
        .next()
        .unwrap_or_else(|| format!("{JSON}{}", Value::from(text)))
}

/// What stands before a text in JSON. Ollama has no way to write some texts.
const JSON: &str = "json ";

fn split(rest: &str) -> (&str, &str) {
    let rest = rest.trim_start();
    let (first, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    (first, rest.trim_start())
}

/// The lines of a Modelfile.
struct Lines<'a> {
    rest: &'a str,
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        (self.rest, self.number) = (rest, self.number + 1);
        Some(line.strip_suffix('\r').unwrap_or(line))
    }

    /// The next line that is not empty and not a comment: its number, first word and rest.
    fn instruction(&mut self) -> Option<(usize, &'a str, &'a str)> {
        loop {
            let line = self.next()?.trim_start();
            if !line.is_empty() && !line.starts_with('#') {
                let (word, rest) = split(line);
                return Some((self.number, word, rest));
            }
        }
    }

    /// The rest of a line as a value: as it is, in quotes, in triple quotes over several lines, or after `json` as a JSON string.
    fn value(&mut self, rest: &'a str) -> Result<String, String> {
        if let Some(begun) = rest.strip_prefix("\"\"\"") {
            let mut text = String::new();
            let mut line = begun;
            loop {
                if let Some(last) = line.trim_end().strip_suffix("\"\"\"") {
                    text.push_str(last);
                    return Ok(text);
                }
                text.push_str(line);
                text.push('\n');
                line = self.next().ok_or("the text in \"\"\" does not end")?;
            }
        }
        let plain = rest.trim_end();
        let json = plain.strip_prefix(JSON);
        if let Some(Ok(text)) = json.map(serde_json::from_str::<String>) {
            return Ok(text);
        }
        let value = match plain.strip_prefix('"') {
            Some(begun) => begun
                .strip_suffix('"')
                .ok_or("the text in \" does not end")?,
            None => plain,
        };
        match plain.is_empty() {
            true => Err("the value is missing".to_string()),
            false => Ok(value.to_string()),
        }
    }
}

/// The folder with the created models.
#[derive(Clone, Debug)]
pub struct Recipes {
    folder: PathBuf,
}

impl Recipes {
    /// Those in this folder.
    pub fn new(folder: PathBuf) -> Recipes {
        Recipes { folder }
    }

    /// A name without the tag `latest`, if a model can have it: letters, digits, `.`, `_` and `-`, and a tag after a colon.
    pub fn plain(name: &str) -> Option<&str> {
        let name = name.strip_suffix(":latest").unwrap_or(name);
        let is_word = |word: &str| {
            let mut bytes = word.bytes();
            bytes
                .next()
                .is_some_and(|first| first.is_ascii_alphanumeric())
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let (first, tag) = name.split_once(':').unwrap_or((name, "latest"));
        (name.len() <= LONGEST_NAME && is_word(first) && is_word(tag)).then_some(name)
    }

    /// Where a model is kept. Not every system has files with colons.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let name = Recipes::plain(name)?.replace(':', "+");
        Some(self.folder.join(format!("{name}.json")))
    }

    /// The created model of this name, if there is one. Errors name the file.
    pub fn get(&self, name: &str) -> Result<Option<Recipe>, String> {
        let Some(path) = self.path(name).filter(|path| path.is_file()) else {
            return Ok(None);
        };
        let read = || {
            let size = path.metadata().map_err(|error| error.to_string())?.len();
            if size > LARGEST {
                return Err(format!("has {size} bytes; {LARGEST} is the limit"));
            }
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            let recipe: Recipe = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            recipe.check()?;
            Ok(recipe)
        };
        read()
            .map(Some)
            .map_err(|problem| format!("{}: {problem}", path.display()))
    }

    /// The names of all created models, sorted.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(".json"));
            let name = name.map(|name| name.replace('+', ":"));
            names.extend(name.filter(|name| Recipes::plain(name).is_some()));
        }
        names.sort();
        Ok(names)
    }

    /// Writes a model, in place of one of the same name.
    pub fn put(&self, name: &str, recipe: &Recipe) -> Result<(), String> {
        let path = self.path(name).ok_or_else(|| bad_name(name))?;
        let text = serde_json::to_string_pretty(recipe).map_err(|error| error.to_string())?;
        if text.len() as u64 >= LARGEST {
            return Err(format!("has {} bytes; {LARGEST} is the limit", text.len()));
        }
        let write = || {
            std::fs::create_dir_all(&self.folder)?;
            // Several may write at once.
            let nth = WRITTEN.fetch_add(1, Ordering::Relaxed);
            let new = format!(".new-{}-{nth}", std::process::id());
            let new = self.folder.join(new);
            let written = std::fs::write(&new, text + "\n");
            let written = written.and_then(|()| std::fs::rename(&new, &path));
            written.inspect_err(|_| drop(std::fs::remove_file(&new)))
        };
        write().map_err(|error: io::Error| format!("{}: {error}", path.display()))
    }

    /// Removes a model. False if there is none.
    pub fn remove(&self, name: &str) -> Result<bool, String> {
        match self.path(name) {
            Some(path) if path.is_file() => std::fs::remove_file(&path)
                .map(|()| true)
                .map_err(|error| format!("{}: {error}", path.display())),
            _ => Ok(false),
        }
    }
}

/// Files that this process has begun to write.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Why a name cannot be had.
pub(crate) fn bad_name(name: &str) -> String {
    format!(
        "{name:?} cannot be a model's name; use letters, digits, ., _ and -, and a tag after a colon"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use welte::GenerateOptions;

    const FILE: &str = "# a pirate\nfrom ./demo.gguf\nSYSTEM \"\"\"You are a pirate.\nSay \"arr\".\"\"\"\n\nPARAMETER temperature 0.5\nPARAMETER stop \"</s>\"\nPARAMETER stop 7\nparameter num_ctx 512\nMESSAGE user Hello there\nMESSAGE assistant \"Arr\"\nLICENSE MIT";

    #[test]
    fn modelfiles_are_read_and_written() {
        let recipe = Recipe::parse(FILE).unwrap();
        assert_eq!(recipe.from, "./demo.gguf");
        assert_eq!(
            recipe.system.as_deref(),
            Some("You are a pirate.\nSay \"arr\".")
        );
        let parameters = json!({ "temperature": 0.5, "stop": ["</s>", "7"], "num_ctx": 512 });
        assert_eq!(Value::from(recipe.parameters.clone()), parameters);
        assert_eq!(recipe.messages[1].content, "Arr");
        assert_eq!(Recipe::parse(&recipe.to_string()).unwrap(), recipe);
        let mut options = GenerateOptions::default();
        recipe.apply(&mut options);
        assert_eq!((options.sampling.temperature, options.stop.len()), (0.5, 2));
        assert_eq!(recipe.context(), Some(512));
    }

    /// What `show` prints is the same model when it is created from it.
    #[test]
    fn every_text_is_read_as_it_was_written() {
        for text in [
            "plain",
            "",
            " ",
            " spaces ",
            "#",
            "\"",
            "\"\"",
            "\"\"\"",
            "\"quoted\"",
            "\"begun",
            "ended\"",
            "a \"\"\" b",
            "one\ntwo",
            "\none\n\ntwo\n",
            "one \ntwo ",
            "one\r\ntwo\r",
            "def f():\n    \"\"\"Yips.\"\"\"\n    return 1",
            "\"\"\"\none\n\"\"\"",
            "ends in\n\"\"\"",
            "ends in\n\"",
            "ends in\n\"\"\" \n",
            "back\\slash\n\\\"\"\"\n\\",
            "json \"text\"",
            "json plain",
            "json \"text\"\n\"\"\"\n",
            "\u{a0}",
            "\u{85}",
        ] {
            let turn = |role: &str| Turn {
                role: role.to_string(),
                content: text.to_string(),
            };
            let mut recipe = Recipe {
                from: "demo".to_string(),
                system: Some(text.to_string()),
                template: Some(text.to_string()),
                messages: vec![turn("user"), turn("assistant")],
                license: vec![text.to_string(), text.to_string()],
                ..Recipe::default()
            };
            let stop = Value::from(vec![text, "</s>"]);
            recipe.parameters.insert("stop".to_string(), stop);
            let written = recipe.to_string();
            let mut lines = Recipe::default();
            let read = Recipe::read(&written, &mut lines);
            read.unwrap_or_else(|problem| panic!("{problem}: {written}"));
            assert_eq!(lines, recipe, "{written}");
        }
        // Ollama reads most of them.
        assert_eq!(quoted("Say \"arr\"."), "Say \"arr\".");
        assert_eq!(quoted("one\ntwo"), "\"\"\"one\ntwo\"\"\"");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("SYSTEM x", "FROM is missing"),
            ("FROM a\nFROM b", "line 2: FROM is there twice"),
            ("FROM a\n\nADAPTER x", "line 3: ADAPTER is not supported"),
            ("FROM a\nSYSTEMS x", "line 2: SYSTEMS: use FROM"),
            ("FROM a\nSYSTEM \"\"\"x\ny", "does not end"),
            ("FROM a\nSYSTEM \"x", "line 2: the text in \" does not end"),
            ("FROM a\nSYSTEM", "line 2: the value is missing"),
            ("FROM a\nPARAMETER temperature hot", "parameter temperature"),
            (
                "FROM a\nPARAMETER temperature -1",
                "parameter temperature: must be",
            ),
            ("FROM a\nPARAMETER mirostat 1", "parameter mirostat"),
            ("FROM a\nMESSAGE tool x", "\"tool\": use system"),
            ("FROM a\nTEMPLATE {{ .Prompt }}", "Go's language"),
        ] {
            let error = Recipe::parse(text).unwrap_err();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    #[test]
    fn conversations_are_opened_once() {
        let recipe = Recipe::parse(FILE).unwrap();
        let shape = |messages: &[Message]| -> Vec<String> {
            recipe
                .opened(messages)
                .iter()
                .map(|m| m.role.clone())
                .collect()
        };
        let user = Message::new("user", "Hi");
        assert_eq!(
            shape(std::slice::from_ref(&user)),
            ["system", "user", "assistant", "user"]
        );
        let own = Message::new("system", "Be brief.");
        let opened = recipe.opened(&[own, user]).into_owned();
        assert_eq!(opened.len(), 4);
        assert_eq!(opened[0].content, "Be brief.");
    }

    #[test]
    fn models_are_kept_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let recipes = Recipes::new(folder.path().join("welte-models"));
        assert!(recipes.names().unwrap().is_empty());
        let recipe = Recipe::parse(FILE).unwrap();
        recipes.put("pirate", &recipe).unwrap();
        recipes.put("pirate:small", &recipe).unwrap();
        assert_eq!(recipes.names().unwrap(), ["pirate", "pirate:small"]);
        assert_eq!(recipes.get("pirate:latest").unwrap(), Some(recipe.clone()));
        assert_eq!(recipes.get("../pirate").unwrap(), None);
        for name in ["", "../x", "a/b", "a b", ".x", "a:", "a:b:c"] {
            assert!(recipes.put(name, &recipe).is_err(), "{name}");
        }
        assert!(recipes.remove("pirate").unwrap() && !recipes.remove("pirate").unwrap());
        std::fs::write(folder.path().join("welte-models/bad.json"), "{").unwrap();
        assert!(recipes.get("bad").unwrap_err().contains("bad.json"));
    }
}

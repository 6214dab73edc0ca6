//! Python's formatting of values: `str`, `repr`, `json.dumps`, `strftime`.

use crate::template::uncovered;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;
use std::fmt::Write;

/// The longest text made from one value, in bytes.
pub(crate) const LONGEST: usize = 32 << 20;

pub(crate) fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

fn check(text: &str) -> Result<(), Error> {
    check_length(text.len())
}

/// Refuses a text of this length.
pub(crate) fn check_length(length: usize) -> Result<(), Error> {
    if length > LONGEST {
        Err(invalid(format!("produces more than {LONGEST} bytes")))
    } else {
        Ok(())
    }
}

/// `str(value)`
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Ok(String::new());
    }
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => Ok(text.to_owned()),
        (
            ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Seq | ValueKind::Map,
            _,
        ) => {
            let json = to_json(value)?;
            let mut out = String::new();
            repr(&json, &mut out)?;
            Ok(out)
        }
        _ => {
            let mut out = Limited(String::new());
            write!(out, "{value}")
                .map_err(|_| invalid(format!("produces more than {LONGEST} bytes")))?;
            Ok(out.0)
        }
    }
}

struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if text.len() > LONGEST.saturating_sub(self.0.len()) {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Fails if the text of a value would be too long, before building it. A list may contain one long text many times.
fn weigh(value: &Value, left: &mut usize, depth: usize) -> Result<(), Error> {
    let own = value.as_str().map_or(8, |text| text.len() + 2);
    *left = left
        .checked_sub(own)
        .filter(|_| depth < 64)
        .ok_or_else(|| {
            invalid(format!(
                "produces more than {LONGEST} bytes, or is nested more than 64 deep"
            ))
        })?;
    if matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    ) {
        for item in value.try_iter()? {
            weigh(&item, left, depth + 1)?;
            if value.kind() == ValueKind::Map {
                weigh(&value.get_item(&item)?, left, depth + 1)?;
            }
        }
    }
    Ok(())
}

fn to_json(value: &Value) -> Result<Json, Error> {
    weigh(value, &mut LONGEST.clone(), 0)?;
    serde_json::to_value(value).map_err(|error| invalid(error.to_string()))
}

/// `separator.join(values)`
pub(crate) fn join(
    values: &Value,
    separator: &str,
    attribute: Option<&str>,
) -> Result<String, Error> {
    let mut out = String::new();
    for (i, value) in values.try_iter()?.enumerate() {
        check(&out)?;
        out.push_str(if i == 0 { "" } else { separator });
        let value = attribute.map_or(Ok(value.clone()), |name| value.get_attr(name))?;
        out.push_str(&text(&value)?);
    }
    check(&out)?;
    Ok(out)
}

/// `text.replace(old, new, count)`
pub(crate) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let most = count
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(usize::MAX);
    let matches = text.matches(old).take(most).count();
    let size = matches
        .checked_mul(new.len())
        .and_then(|added| added.checked_add(text.len()));
    if size.is_none_or(|size| size > LONGEST) {
        return Err(invalid(format!(
            "replace: produces more than {LONGEST} bytes"
        )));
    }
    Ok(text.replacen(old, new, most))
}

/// `markupsafe.escape(text)`
pub(crate) fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let text = text.replace('>', "&gt;").replace('"', "&#34;");
    text.replace('\'', "&#39;")
}

/// Jinja's `indent`: spaces before every line except the first and empty ones.
pub(crate) fn indent(text: &str, width: usize, first: bool, blank: bool) -> Result<String, Error> {
    if text.lines().count().saturating_mul(width) > LONGEST {
        return Err(invalid(format!(
            "indent: produces more than {LONGEST} bytes"
        )));
    }
    let margin = " ".repeat(width);
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        out.push_str(if i == 0 { "" } else { "\n" });
        out.push_str(
            if (i > 0 || first) && (blank || i == 0 || !line.is_empty()) {
                &margin
            } else {
                ""
            },
        );
        out.push_str(line);
    }
    Ok(out)
}

/// Refuses widths of five or more digits.
pub(crate) fn check_format(format: &str) -> Result<(), Error> {
    let longest = format
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max()
        .unwrap_or(0);
    if longest > 4 {
        Err(invalid("format: the width is more than 9999"))
    } else {
        Ok(())
    }
}

fn repr(value: &Json, out: &mut String) -> Result<(), Error> {
    check(out)?;
    match value {
        Json::Null => out.push_str("None"),
        Json::Bool(true) => out.push_str("True"),
        Json::Bool(false) => out.push_str("False"),
        Json::Number(number) => push_number(number, out),
        Json::String(text) => push_repr(text, out),
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(item, out)?;
            }
            out.push(']');
        }
        Json::Object(fields) => {
            out.push('{');
            for (i, (name, item)) in fields.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                push_repr(name, out);
                out.push_str(": ");
                repr(item, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn push_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Python writes floats from 1e-4 to 1e16 plainly, others with a signed exponent of at least two digits.
fn push_number(number: &serde_json::Number, out: &mut String) {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        out.push_str(&number.to_string());
        return;
    };
    let plain = float == 0.0 || (1e-4..1e16).contains(&float.abs());
    if plain {
        out.push_str(&format!("{float:?}"));
        return;
    }
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |rest| ('-', rest));
    out.push_str(&format!("{digits}e{sign}{exponent:0>2}"));
}

/// The options of `json.dumps`.
pub(crate) struct JsonStyle {
    pub(crate) ascii: bool,
    pub(crate) indent: Option<usize>,
    pub(crate) sorted: bool,
    pub(crate) separators: Option<Vec<String>>,
}

/// `json.dumps(value)`
pub(crate) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(invalid("tojson: the value is undefined"));
    }
    if style.indent.is_some_and(|indent| indent > 32) {
        return Err(invalid("tojson: indent is more than 32"));
    }
    let (item, key) = match style.separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => return Err(invalid("tojson: separators are two strings")),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let json = to_json(value)?;
    let mut writer = JsonWriter {
        style,
        item,
        key,
        out: String::new(),
    };
    writer.value(&json, 0)?;
    Ok(writer.out)
}

/// A character, or the one that it stands for.
fn opened(c: char) -> char {
    uncovered(c).unwrap_or(c)
}

/// Whether a character needs no escape.
fn is_ascii(c: char) -> bool {
    (' '..='~').contains(&opened(c))
}

struct JsonWriter<'a> {
    style: &'a JsonStyle,
    item: &'a str,
    key: &'a str,
    out: String,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Json, depth: usize) -> Result<(), Error> {
        check(&self.out)?;
        match value {
            Json::Null => self.out.push_str("null"),
            Json::Bool(flag) => self.out.push_str(if *flag { "true" } else { "false" }),
            Json::Number(number) => push_number(number, &mut self.out),
            Json::String(text) => self.string(text),
            Json::Array(items) if items.is_empty() => self.out.push_str("[]"),
            Json::Object(fields) if fields.is_empty() => self.out.push_str("{}"),
            Json::Array(items) => {
                self.out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.separate(i, depth + 1);
                    self.value(item, depth + 1)?;
                }
                self.line(depth);
                self.out.push(']');
            }
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.style.sorted {
                    let open = |name: &str| name.chars().map(opened).collect::<String>();
                    fields.sort_by_cached_key(|(name, _)| open(name));
                }
                self.out.push('{');
                for (i, (name, item)) in fields.into_iter().enumerate() {
                    self.separate(i, depth + 1);
                    self.string(name);
                    self.out.push_str(self.key);
                    self.value(item, depth + 1)?;
                }
                self.line(depth);
                self.out.push('}');
            }
        }
        Ok(())
    }

    fn separate(&mut self, i: usize, depth: usize) {
        if i > 0 {
            self.out.push_str(self.item);
        }
        self.line(depth);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.style.ascii && !is_ascii(c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Year, month and day of month (both from 1) of a day counted from 1970-01-01.
fn civil(day: u64) -> (u64, u64, u64) {
    // Counted from 1 March of year 0, the leap day is the last day of its year, and 400 years have 146,097 days.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (
        era * 400 + year + u64::from(month < 3),
        month,
        day - (153 * shifted + 2) / 5 + 1,
    )
}

/// `datetime.strftime` in UTC with the common directives.
pub(crate) fn strftime(now: u64, format: &str) -> Result<String, Error> {
    if format.len() > 1024 {
        return Err(invalid("strftime_now: the format is too long"));
    }
    let now = now.min(253_402_300_799);
    let (days, seconds) = (now / 86_400, now % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let month_name = MONTHS[(month as usize - 1) % 12];
    let day_name = DAYS[((days + 4) % 7) as usize];
    let january = (0..366).find(|back| {
        civil(days.saturating_sub(*back)).1 == 1 && civil(days - back.min(&days)).2 == 1
    });
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let two = |value: u64| {
            if bare {
                value.to_string()
            } else {
                format!("{value:02}")
            }
        };
        let text = match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('H') => two(hour),
            Some('I') => two(half),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('j') => format!("{:03}", january.unwrap_or(0) + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let name = other.map_or_else(String::new, String::from);
                return Err(invalid(format!(
                    "strftime_now: unknown directive '%{name}'"
                )));
            }
        };
        out.push_str(&text);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    fn value(json: &Json) -> Value {
        Value::from(Serde(json))
    }

    #[test]
    fn values_print_as_in_python() {
        for (json, printed) in [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!(false), "False"),
            (json!(1), "1"),
            (json!(-1.0), "-1.0"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001), "1e-05"),
            (json!(1e15), "1000000000000000.0"),
            (json!(1e16), "1e+16"),
            (json!(1.5e300), "1.5e+300"),
            (json!([]), "[]"),
            (
                json!([null, "a", "it's", "it's \"b\""]),
                "[None, 'a', \"it's\", 'it\\'s \"b\"']",
            ),
            (json!({"a": 1, "b": [true]}), "{'a': 1, 'b': [True]}"),
            (json!(["\n\r\t\\\u{1}"]), "['\\n\\r\\t\\\\\\x01']"),
            (json!("it's"), "it's"),
        ] {
            assert_eq!(text(&value(&json)).unwrap(), printed);
        }
        assert_eq!(text(&Value::UNDEFINED).unwrap(), "");
    }

    /// A text and a list weigh what they print, more or less.
    #[test]
    fn a_value_is_weighed_before_it_is_printed() {
        let weight = |value: &Value| {
            let mut left = 1000;
            weigh(value, &mut left, 0).map(|()| 1000 - left)
        };
        assert_eq!(weight(&Value::from(1)).unwrap(), 8);
        assert_eq!(weight(&Value::from("abc")).unwrap(), 5);
        assert_eq!(weight(&Value::from(vec!["ab", "c"])).unwrap(), 8 + 4 + 3);
        let map = value(&json!({"a": "bcd", "e": 1}));
        assert_eq!(weight(&map).unwrap(), 8 + 3 + 5 + 3 + 8);
        assert_eq!(weight(&Value::from("x".repeat(998))).unwrap(), 1000);
        assert!(weight(&Value::from("x".repeat(999))).is_err());
        let nested =
            |depth: usize| (0..depth).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(weight(&nested(63)).is_ok() && weight(&nested(64)).is_err());
        // One long text, many times.
        let long = Value::from("x".repeat(1 << 20));
        let many = |count: usize| text(&Value::from(vec![long.clone(); count])).is_ok();
        assert!(many(2) && !many(LONGEST >> 20));
    }

    #[test]
    fn lengths_have_a_limit() {
        assert!(check_length(LONGEST).is_ok() && check_length(LONGEST + 1).is_err());
        let mut limited = Limited("x".repeat(LONGEST - 2));
        assert!(limited.write_str("abc").is_err() && limited.write_str("ab").is_ok());
        assert!(limited.write_str("").is_ok() && limited.write_str("a").is_err());
        for (format, allowed) in [
            ("{:9999}", true),
            ("{:10000}", false),
            ("{:1}{:99999}", false),
            ("1234a1234", true),
            ("", true),
        ] {
            assert_eq!(check_format(format).is_ok(), allowed, "{format}");
        }
        let grown = |new: usize| replace("aab", "a", &"x".repeat(new), None).is_ok();
        assert!(grown(LONGEST / 2 - 2) && !grown(LONGEST / 2));
        assert!(replace("aab", "a", &"x".repeat(LONGEST / 2), Some(1)).is_ok());
        let lines = |width: usize| indent("a\nb", width, false, false).is_ok();
        assert!(lines(LONGEST / 2) && !lines(LONGEST / 2 + 1));
    }

    #[test]
    fn texts_are_changed_as_in_python() {
        for (most, replaced) in [
            (None, "bxbx"),
            (Some(-1), "bxbx"),
            (Some(0), "axax"),
            (Some(1), "bxax"),
        ] {
            assert_eq!(replace("axax", "a", "b", most).unwrap(), replaced);
        }
        for (first, blank, expected) in [
            (false, false, "a\n\n  b"),
            (true, false, "  a\n\n  b"),
            (false, true, "a\n  \n  b"),
            (true, true, "  a\n  \n  b"),
        ] {
            assert_eq!(indent("a\n\nb", 2, first, blank).unwrap(), expected);
        }
        assert_eq!(indent("\na", 1, true, false).unwrap(), " \n a");
        let list = Value::from(vec!["a", "b", "c"]);
        assert_eq!(join(&list, ", ", None).unwrap(), "a, b, c");
        let maps = value(&json!([{"n": 1}, {"n": true}]));
        assert_eq!(join(&maps, "", Some("n")).unwrap(), "1True");
        assert_eq!(
            escape("<a & 'b' \"c\">"),
            "&lt;a &amp; &#39;b&#39; &#34;c&#34;&gt;"
        );
    }

    #[test]
    fn json_is_written_as_in_python() {
        let value = value(&json!({"b": [1, "é\u{1}\u{8}\u{c}"], "a": {}, "c": []}));
        let written = |indent, sorted, ascii, separators: Option<&[&str]>| {
            let style = JsonStyle {
                ascii,
                indent,
                sorted,
                separators: separators
                    .map(|all| all.iter().map(|text| (*text).to_owned()).collect()),
            };
            json(&value, &style)
        };
        let plain = written(None, true, false, None).unwrap();
        assert_eq!(
            plain,
            "{\"a\": {}, \"b\": [1, \"é\\u0001\\b\\f\"], \"c\": []}"
        );
        let ascii = written(None, true, true, Some(&[",", ":"])).unwrap();
        assert_eq!(
            ascii,
            "{\"a\":{},\"b\":[1,\"\\u00e9\\u0001\\b\\f\"],\"c\":[]}"
        );
        let lines = written(Some(1), true, false, None).unwrap();
        assert_eq!(
            lines,
            "{\n \"a\": {},\n \"b\": [\n  1,\n  \"é\\u0001\\b\\f\"\n ],\n \"c\": []\n}"
        );
        assert!(written(Some(32), true, false, None).is_ok());
        assert!(written(Some(33), true, false, None).is_err());
        assert!(written(None, true, false, Some(&[","])).is_err());
    }

    #[test]
    fn times_are_those_of_python() {
        let all = "%Y|%y|%m|%d|%H|%I|%M|%S|%j|%p|%B|%b|%h|%A|%a|%F|%T|%Z|%z|%%|%e|%-d|%-m|%-H|%-I|%-M|%-S";
        for (time, expected) in [
            (
                0,
                "1970|70|01|01|00|12|00|00|001|AM|January|Jan|Jan|Thursday|Thu|1970-01-01|00:00:00|UTC|+0000|%| 1|1|1|0|12|0|0",
            ),
            (
                951868799,
                "2000|00|02|29|23|11|59|59|060|PM|February|Feb|Feb|Tuesday|Tue|2000-02-29|23:59:59|UTC|+0000|%|29|29|2|23|11|59|59",
            ),
            (
                1709208000,
                "2024|24|02|29|12|12|00|00|060|PM|February|Feb|Feb|Thursday|Thu|2024-02-29|12:00:00|UTC|+0000|%|29|29|2|12|12|0|0",
            ),
            (
                4107542400,
                "2100|00|03|01|00|12|00|00|060|AM|March|Mar|Mar|Monday|Mon|2100-03-01|00:00:00|UTC|+0000|%| 1|1|3|0|12|0|0",
            ),
            (
                1735689600,
                "2025|25|01|01|00|12|00|00|001|AM|January|Jan|Jan|Wednesday|Wed|2025-01-01|00:00:00|UTC|+0000|%| 1|1|1|0|12|0|0",
            ),
            (
                1767225599,
                "2025|25|12|31|23|11|59|59|365|PM|December|Dec|Dec|Wednesday|Wed|2025-12-31|23:59:59|UTC|+0000|%|31|31|12|23|11|59|59",
            ),
            (
                5140799,
                "1970|70|03|01|11|11|59|59|060|AM|March|Mar|Mar|Sunday|Sun|1970-03-01|11:59:59|UTC|+0000|%| 1|1|3|11|11|59|59",
            ),
            (
                1752328984,
                "2025|25|07|12|14|02|03|04|193|PM|July|Jul|Jul|Saturday|Sat|2025-07-12|14:03:04|UTC|+0000|%|12|12|7|14|2|3|4",
            ),
            (
                253402300799,
                "9999|99|12|31|23|11|59|59|365|PM|December|Dec|Dec|Friday|Fri|9999-12-31|23:59:59|UTC|+0000|%|31|31|12|23|11|59|59",
            ),
        ] {
            assert_eq!(strftime(time, all).unwrap(), expected);
        }
        // The last second that Python knows.
        assert_eq!(strftime(u64::MAX, "%F %T").unwrap(), "9999-12-31 23:59:59");
        assert!(
            strftime(0, "%Q").is_err() && strftime(0, "%").is_err() && strftime(0, "%-").is_err()
        );
        assert!(strftime(0, &"a".repeat(1024)).is_ok() && strftime(0, &"a".repeat(1025)).is_err());
    }
}

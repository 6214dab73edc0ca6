//! Rows of figures as Markdown, CSV or JSON.

use crate::args::Rows;
use std::io::Write;

/// A column: its name in JSON and CSV, its title in Markdown, and the digits after the point there.
pub(super) type Column = (&'static str, &'static str, usize);

/// The figures of a row by their names.
pub(super) type Figures = serde_json::Map<String, serde_json::Value>;

/// A table that is printed row by row.
pub(super) struct Table {
    rows: Rows,
    columns: &'static [Column],
    /// Facts that JSON repeats in every row.
    facts: Figures,
    count: usize,
}

impl Table {
    pub(super) fn new(rows: Rows, columns: &'static [Column], facts: Figures) -> Table {
        Table {
            rows,
            columns,
            facts,
            count: 0,
        }
    }

    /// Prints a row.
    pub(super) fn row(&mut self, figures: &Figures) -> anyhow::Result<()> {
        let mut out = crate::terminal::stdout();
        let first = self.count == 0;
        self.count += 1;
        let number = |name: &str| figures.get(name).and_then(serde_json::Value::as_f64);
        match self.rows {
            Rows::Md => {
                let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
                if first {
                    let titles = self.columns.iter().map(|column| column.1.to_string());
                    writeln!(out, "{}", line(titles.collect()))?;
                    let rules = self.columns.iter().map(|_| "---:".to_string());
                    writeln!(out, "{}", line(rules.collect()))?;
                }
                let cell = |&(name, _, digits): &Column| match (number(name), figures.get(name)) {
                    (Some(value), _) => format!("{value:.digits$}"),
                    (None, Some(serde_json::Value::String(text))) => text.clone(),
                    _ => String::new(),
                };
                writeln!(out, "{}", line(self.columns.iter().map(cell).collect()))?;
            }
            Rows::Csv => {
                if first {
                    let names: Vec<_> = self.columns.iter().map(|column| column.0).collect();
                    writeln!(out, "{}", names.join(","))?;
                }
                let cell =
                    |column: &Column| number(column.0).map_or(String::new(), |v| v.to_string());
                let cells: Vec<String> = self.columns.iter().map(cell).collect();
                writeln!(out, "{}", cells.join(","))?;
            }
            Rows::Json | Rows::Jsonl => {
                let mut all = self.facts.clone();
                all.extend(figures.clone());
                let row = serde_json::Value::from(all);
                match self.rows {
                    Rows::Json if first => write!(out, "[\n  {row}")?,
                    Rows::Json => write!(out, ",\n  {row}")?,
                    _ => writeln!(out, "{row}")?,
                }
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Prints what follows the last row.
    pub(super) fn end(&self) {
        if self.rows == Rows::Json {
            println!("{}", if self.count == 0 { "[]" } else { "\n]" });
        }
    }
}

//! What all pages share: escaping, the frame of a page, and its style. A page has no script and no outside file.

use std::fmt::{self, Write};

const STYLE: &str = "\
:root{--ink:#1c2430;--soft:#5d6b7c;--line:#dde3ea;--paper:#fbfcfd;--c0:#3867c8;--c1:#d9822b;--c2:#2b9d7c;--c3:#8957c7;--c4:#b8475f}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#93a1b3;--line:#303a47;--paper:#151a21;--c0:#7fa4f0;--c1:#eda55b}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:78rem;padding:2.5rem 1.5rem;background:var(--paper);color:var(--ink);\
font:15px/1.5 system-ui,sans-serif}h1{font-size:1.7rem;margin:0 0 .3rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.4rem 0 .8rem}\
h3{font-size:1rem;margin:1.4rem 0 .5rem}.sub{color:var(--soft);margin:0 0 .8rem}\
table{border-collapse:collapse;width:100%;font-size:.88rem}th{text-align:left;color:var(--soft);font-weight:500}\
td,th{padding:.28rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;white-space:nowrap}\
code{font:.84em ui-monospace,monospace}details{margin-top:1rem;overflow-x:auto}summary{cursor:pointer;font-weight:600}";

/// Text as HTML content or as a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A whole page: `body` writes what follows the heading. `style` is added to the shared style.
pub(crate) fn page(
    title: &str,
    heading: &str,
    style: &str,
    body: impl FnOnce(&mut String) -> fmt::Result,
) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}{style}</style></head><body>\n<h1>{}</h1>\n",
        escape(title),
        escape(heading)
    );
    let _ = body(&mut out);
    out.push_str("</body></html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_escaped() {
        let page = page("a <b> & \"c\"", "d<e", ".x{}", |out| out.write_str("body"));
        assert!(page.contains("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"));
        assert!(page.contains("<h1>d&lt;e</h1>\nbody</body></html>\n"));
        assert!(page.contains(".x{}</style>"));
    }
}

//! Renders Markdown as self-contained HTML. HTML in the source is shown as text, and
//! pictures are embedded.

use std::fs;
use std::path::Path;

use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// Renders a page. Its pictures are files in `dir`.
pub fn render(text: &str, dir: &Path) -> String {
    let mut is_alone = false;
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).filter_map(|event| {
        Some(match event {
            Event::Html(html) | Event::InlineHtml(html) => Event::Text(html),
            // The reader of the page does not have the other files.
            Event::Start(Tag::Link { .. }) | Event::End(TagEnd::Link) => return None,
            Event::Start(Tag::Image {
                link_type,
                dest_url,
                title,
                id,
            }) => {
                let Some(url) = embedded(dir, &dest_url) else {
                    is_alone = true;
                    return None;
                };
                Event::Start(Tag::Image {
                    link_type,
                    dest_url: url.into(),
                    title,
                    id,
                })
            }
            Event::End(TagEnd::Image) if is_alone => {
                is_alone = false;
                return None;
            }
            // Deeper than the heading of the section that holds the page.
            Event::Start(Tag::Heading { .. }) => Event::Start(Tag::Heading {
                level: HeadingLevel::H4,
                id: None,
                classes: Vec::new(),
                attrs: Vec::new(),
            }),
            Event::End(TagEnd::Heading(_)) => Event::End(TagEnd::Heading(HeadingLevel::H4)),
            other => other,
        })
    });
    let mut out = String::new();
    html::push_html(&mut out, events);
    out
}

/// A picture as a data URL.
fn embedded(dir: &Path, name: &CowStr<'_>) -> Option<String> {
    let is_name = |name: &str| !name.contains('/') && name.ends_with(".svg");
    let text = is_name(name).then(|| fs::read_to_string(dir.join(&**name)));
    Some(data_url(&text?.ok()?))
}

/// An SVG that is loaded as an image runs no scripts and loads nothing.
fn data_url(svg: &str) -> String {
    let mut url = "data:image/svg+xml,".to_owned();
    for byte in svg.bytes() {
        match byte {
            b'A'..=b'Z'
            | b'a'..=b'z'
            | b'0'..=b'9'
            | b' '
            | b'='
            | b':'
            | b'/'
            | b','
            | b'.'
            | b'-'
            | b'_'
            | b';' => url.push(byte.into()),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

//! The common style of all tables.

use comfy_table::{Table, presets};

/// An empty Markdown table.
pub fn markdown<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

//! The common style of all tables.

use comfy_table::{Table, presets};

/// An empty Markdown table.
pub fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table
}

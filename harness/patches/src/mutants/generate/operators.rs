//! The defects that a line of code can have: each changes this line and no other.

use super::source::{Language, Line, is_word};

/// A changed line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// What kind of change it is, as in names of mutants.
    pub operator: &'static str,
    /// The line as it becomes.
    pub becomes: String,
}

/// Comparisons: the token, its opposite, and the token with the other boundary.
const COMPARISONS: [(&str, &str, &str); 6] = [
    ("==", "!=", ""),
    ("!=", "==", ""),
    ("<", ">=", "<="),
    ("<=", ">", "<"),
    (">", "<=", ">="),
    (">=", "<", ">"),
];

/// Other tokens that are swapped for each other.
const SWAPPED: [(&str, &str, &str); 6] = [
    ("&&", "||", "logic"),
    ("||", "&&", "logic"),
    ("+", "-", "plus"),
    ("-", "+", "plus"),
    ("+=", "-=", "plus"),
    ("-=", "+=", "plus"),
];

/// All tokens of two and three characters, because they contain others.
const TOKENS: [&str; 27] = [
    "<<=", ">>=", "...", "..=", "==", "!=", "<=", ">=", "&&", "||", "->", "=>", "<<", ">>", "+=",
    "-=", "*=", "/=", "%=", "&=", "|=", "^=", "++", "--", "::", "..", "//",
];

/// Statements that begin so print, check, or are for the compiler. What they compute does
/// not matter to a test.
const SPARED: [&str; 24] = [
    "pr_",
    "dev_err",
    "dev_warn",
    "dev_info",
    "dev_dbg",
    "dev_notice",
    "dev_alert",
    "drm_err",
    "drm_dbg",
    "drm_warn",
    "drm_info",
    "NV_",
    "nvdev_",
    "VMM_",
    "WARN",
    "BUG",
    "BUILD_BUG",
    "static_assert",
    "const_assert",
    "build_assert",
    "lockdep_",
    "might_",
    "trace_",
    "kunit_",
];

/// Words in names of functions that order what other processors, devices or users see.
const LOCKS: [&str; 9] = [
    "lock",
    "guard",
    "rcu",
    "mutex",
    "spin",
    "down_read",
    "up_read",
    "down_write",
    "up_write",
];
const BARRIERS: [&str; 7] = ["smp_", "wmb", "rmb", "flush", "sync", "inval", "barrier"];
const REFERENCES: [&str; 4] = ["put", "get", "ref", "drop"];

/// Words that look like functions, and are not.
const KEYWORDS: [&str; 7] = ["if", "for", "while", "switch", "return", "let", "match"];

/// Where a token is on its line.
#[derive(Clone, Copy)]
struct Token<'a> {
    start: usize,
    text: &'a str,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }

    fn is_number(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_digit())
    }
}

/// The changes of a line, whose text is `text`.
pub fn changes(text: &str, line: &Line, language: Language) -> Vec<Change> {
    let code = line.code.as_str();
    let statement = [line.before.as_str(), code.trim()].join(" ");
    let statement = statement.trim_start();
    if SPARED.iter().any(|spared| statement.starts_with(spared)) || code.trim().starts_with('#') {
        return Vec::new();
    }
    let mut changes = Vec::new();
    let mut add = |operator, from: usize, to: usize, new: &str| {
        changes.push(Change {
            operator,
            becomes: format!("{}{new}{}", &text[..from], &text[to..])
                .trim_end()
                .to_owned(),
        });
    };
    tokens_changed(line, &mut add);
    if let Some((from, to, new)) = negated(code, language) {
        add("negate", from, to, &new);
    }
    let start = code.len() - code.trim_start().len();
    if begins(&line.before, language) {
        for (operator, new) in statements(line, language) {
            add(operator, start, code.len(), new);
        }
    }
    // Two operators may come to the same.
    let mut different = Vec::<Change>::new();
    for change in changes {
        if different
            .iter()
            .all(|other| other.becomes != change.becomes)
        {
            different.push(change);
        }
    }
    different
}

/// Whether a line after this code begins a statement.
fn begins(before: &str, language: Language) -> bool {
    let is_block = language == Language::C && before.ends_with(')') && is_balanced(before);
    before.is_empty() || before == "else" || before.ends_with(':') || is_block
}

fn is_balanced(code: &str) -> bool {
    code.matches(['(', '[', '{']).count() == code.matches([')', ']', '}']).count()
}

/// Changes of a single token.
fn tokens_changed(line: &Line, add: &mut impl FnMut(&'static str, usize, usize, &str)) {
    let code = line.code.as_str();
    let tokens = tokens(code);
    for (index, token) in tokens.iter().enumerate() {
        let last = index.checked_sub(1).map(|index| tokens[index].text);
        let last = last.unwrap_or(last_token(&line.before));
        let next = tokens.get(index + 1).map_or("", |token| token.text);
        let (from, to) = (token.start, token.end());
        if token.is_number() {
            for (operator, new) in numbers(token.text).into_iter().filter(|_| last != ".") {
                add(operator, from, to, &new);
            }
        }
        let is_end = matches!(next, "" | ";" | "," | "}");
        match token.text {
            "continue" if is_end => add("loop", from, to, "break"),
            "break" if is_end => add("loop", from, to, "continue"),
            _ => {}
        }
        if !is_binary(code, token, last) {
            continue;
        }
        for (old, opposite, boundary) in COMPARISONS {
            if token.text == old {
                add("compare", from, to, opposite);
                if !boundary.is_empty() {
                    add("boundary", from, to, boundary);
                }
            }
        }
        for (old, new, operator) in SWAPPED {
            if token.text == old {
                add(operator, from, to, new);
            }
        }
    }
}

/// Whether a token has operands at both sides: signs, references, closures, and types with
/// parameters do not.
fn is_binary(code: &str, token: &Token<'_>, last: &str) -> bool {
    let is_space = |c: Option<char>| c.is_none_or(char::is_whitespace);
    let around = [
        code[..token.start].chars().next_back(),
        code[token.end()..].chars().next(),
    ];
    let is_operand = last.ends_with(|c: char| is_word(c) || ")]?}\"'".contains(c));
    let is_keyword = matches!(last, "return" | "move" | "in" | "case" | "else");
    around.into_iter().all(is_space) && is_operand && !is_keyword
}

fn last_token(code: &str) -> &str {
    tokens(code).last().map_or("", |token| token.text)
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while let Some(first) = code[start..].chars().next() {
        let rest = &code[start..];
        let len = if is_word(first) {
            rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
        } else {
            let long = TOKENS.iter().find(|token| rest.starts_with(**token));
            long.map_or(first.len_utf8(), |token| token.len())
        };
        if !first.is_whitespace() {
            let text = &rest[..len];
            tokens.push(Token { start, text });
        }
        start += len;
    }
    tokens
}

/// What a number becomes: the next one, and 0.
fn numbers(text: &str) -> Vec<(&'static str, String)> {
    let (radix, digits) = match text.get(..2) {
        Some("0x" | "0X") => (16, &text[2..]),
        Some("0b") => (2, &text[2..]),
        // The mode of a file.
        Some(start) if start.starts_with('0') && start.ends_with(|c: char| c.is_digit(8)) => {
            return Vec::new();
        }
        _ => (10, text),
    };
    let is_digit = |c: char| c.is_digit(radix) || c == '_';
    let end = digits.find(|c| !is_digit(c)).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(end);
    let Ok(value) = u64::from_str_radix(&digits.replace('_', ""), radix) else {
        return Vec::new();
    };
    let Some(next) = value.checked_add(1) else {
        return Vec::new();
    };
    let next = match radix {
        16 => format!("{next:#x}{suffix}"),
        2 => format!("{next:#b}{suffix}"),
        _ => format!("{next}{suffix}"),
    };
    let mut all = vec![("up", next)];
    if value != 0 {
        all.push(("zero", format!("0{suffix}")));
    }
    all
}

/// The place of a condition on one line, and its opposite. A single comparison has
/// its opposite already.
fn negated(code: &str, language: Language) -> Option<(usize, usize, String)> {
    let trimmed = code.trim_start();
    let indent = code.len() - trimmed.len();
    let starts = ["if ", "else if ", "} else if "];
    let word = starts.iter().find(|start| trimmed.starts_with(**start))?;
    let open = indent + word.len();
    let (from, to) = match language {
        Language::C => (open + 1, closing(code, open)?),
        Language::Rust => (open, code.strip_suffix(" {")?.len()),
    };
    let condition = code.get(from..to)?;
    let tokens = Vec::from_iter(tokens(condition).iter().map(|token| token.text));
    let has = |words: &[&str]| tokens.iter().any(|token| words.contains(token));
    if has(&["let", "{"]) {
        return None;
    }
    let is_long = has(&["&&", "||"]);
    if !is_long && has(&["==", "!=", "<", "<=", ">", ">="]) {
        return None;
    }
    // `to` is where the text in place of the first `!`, or of the whole condition, ends.
    match condition.strip_prefix('!') {
        Some(_) if !is_long => Some((from, from + 1, String::new())),
        _ => Some((from, to, format!("!({condition})"))),
    }
}

/// The place of the parenthesis that closes the one at `open`.
fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in code.char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (c == ')').then_some(at);
        }
    }
    None
}

/// What a line that is a whole statement, or a function's value, becomes.
fn statements(line: &Line, language: Language) -> Vec<(&'static str, &'static str)> {
    let code = line.code.trim();
    let mut all = Vec::new();
    let (nothing, success) = match language {
        Language::C => (";", "return 0;"),
        Language::Rust => ("", "return Ok(());"),
    };
    match code {
        "return true;" => all.push(("return", "return false;")),
        "return false;" => all.push(("return", "return true;")),
        "true" => all.push(("return", "false")),
        "false" => all.push(("return", "true")),
        _ => {}
    }
    let fails = match language {
        Language::C => {
            let errors = ["return -E", "return ret;", "return err;", "return rc;"];
            errors.iter().any(|start| code.starts_with(start))
        }
        Language::Rust => code.starts_with("return Err("),
    };
    if !code.ends_with([';', ')']) || !is_balanced(code) {
        return all;
    }
    if fails {
        all.push(("succeed", success));
    }
    match language {
        Language::C if code.starts_with("return ERR_PTR(") => {
            all.push(("succeed", "return NULL;"));
        }
        Language::C if code.starts_with("ret = -E") => all.push(("succeed", "ret = 0;")),
        Language::C if code.starts_with("err = -E") => all.push(("succeed", "err = 0;")),
        Language::Rust if code.starts_with("Err(") && !code.ends_with(';') => {
            all.push(("succeed", "Ok(())"));
        }
        _ => {}
    }
    if !code.ends_with(';') {
        return all;
    }
    let returns = code == "return;" || code.starts_with("return ") || code.starts_with("goto ");
    // A function in C that needs a value has one in the end.
    if returns && !line.next.starts_with('}') {
        all.push(("go-on", nothing));
    }
    if let Some(operator) = call(code, language) {
        all.push((operator, nothing));
    }
    all
}

/// The operator that removes this statement, if all that it does is a call.
fn call(code: &str, language: Language) -> Option<&'static str> {
    let inner = match language {
        Language::C => code,
        Language::Rust => {
            let code = code.strip_prefix("unsafe { ").unwrap_or(code);
            // What a guard protects is in reach without it, too.
            match code.strip_prefix("let _") {
                Some(guard) if guard.starts_with(|c: char| is_word(c)) => {
                    guard.split_once(" = ")?.1
                }
                _ => code,
            }
        }
    };
    let open = inner.find('(')?;
    let name = inner[..open].trim();
    let is_path = |c: char| is_word(c) || (language == Language::Rust && ".:&*<>".contains(c));
    let has_end = [");", ")?;", ") };"].iter().any(|end| inner.ends_with(end));
    if name.is_empty() || !name.chars().all(is_path) || KEYWORDS.contains(&name) || !has_end {
        return None;
    }
    let is_in = |words: &[&str]| words.iter().any(|word| code.contains(word));
    // The names, not the arguments: `mutex_lock(&x->barrier)`. `x_locked()` takes no lock.
    let function = name.replace("_locked", "");
    let named = |words: &[&str]| words.iter().any(|word| function.contains(word));
    Some(
        if named(&LOCKS) || (code.starts_with("let _") && is_in(&LOCKS)) {
            "unlock"
        } else if named(&BARRIERS) {
            "barrier"
        } else if named(&REFERENCES) {
            "reference"
        } else {
            "call"
        },
    )
}

#[cfg(test)]
mod tests;

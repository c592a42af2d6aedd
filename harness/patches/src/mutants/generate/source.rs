//! Reads C or Rust as far as mutants need it: without comments and the contents of
//! strings, and for each line the function that it is in.

/// The languages of the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// C, also in headers.
    C,
    /// Rust.
    Rust,
}

/// A line in the body of a function.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1.
    pub number: usize,
    /// The function's name.
    pub function: String,
    /// The line, with spaces for comments and for what is in strings. Bytes keep their
    /// places.
    pub code: String,
    /// The code of the statement so far, if the statement begins on an earlier line.
    pub before: String,
    /// The next line with code.
    pub next: String,
}

/// What a pair of braces encloses.
#[derive(Clone)]
enum Block {
    /// A function's body, or a block in it.
    Function(String),
    /// Tests of Rust code.
    Tests,
    /// A type, a table, an `impl`.
    Other,
}

/// The lines in bodies of functions, without tests.
pub fn lines(text: &str, language: Language) -> Vec<Line> {
    let code = mask(text, language);
    let mut blocks = Vec::new();
    // Depths of parentheses in the blocks around.
    let mut depths = Vec::new();
    let (mut depth, mut statement) = (0_usize, 0);
    let mut found = Vec::new();
    let mut at = 0;
    for (index, line) in code.split_inclusive('\n').enumerate() {
        if let Some(Block::Function(name)) = blocks.last()
            && !line.trim().is_empty()
        {
            found.push(Line {
                number: index + 1,
                function: name.clone(),
                code: line.trim_end().to_owned(),
                before: code[statement.min(at)..at].trim().to_owned(),
                next: String::new(),
            });
        }
        for (offset, byte) in line.bytes().enumerate() {
            let here = at + offset;
            match byte {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth = depth.saturating_sub(1),
                b'{' => {
                    let head = &code[statement..here];
                    blocks.push(block(blocks.last(), head, language));
                    depths.push(std::mem::take(&mut depth));
                    statement = here + 1;
                }
                b'}' => {
                    blocks.pop();
                    depth = depths.pop().unwrap_or_default();
                    statement = here + 1;
                }
                b';' if depth == 0 => statement = here + 1,
                _ => {}
            }
        }
        at += line.len();
    }
    let all = Vec::from_iter(code.lines().map(str::trim_end));
    for line in &mut found {
        let mut after = all[line.number..].iter();
        let next = after.find(|line| !line.is_empty());
        next.copied().unwrap_or_default().clone_into(&mut line.next);
    }
    found
}

/// The block that begins after `head`.
fn block(around: Option<&Block>, head: &str, language: Language) -> Block {
    if let Some(block @ (Block::Function(_) | Block::Tests)) = around {
        return block.clone();
    }
    match language {
        Language::C => match head.split_once('(') {
            Some((start, _)) if head.trim_end().ends_with(')') && !start.contains('=') => {
                Block::Function(last_word(start).to_owned())
            }
            _ => Block::Other,
        },
        Language::Rust => {
            let tests = ["kunit_tests", "KUNIT_TEST", "cfg(test)"];
            if tests.iter().any(|word| head.contains(word)) {
                return Block::Tests;
            }
            let mut words = head.split(|c: char| !is_word(c));
            match words.by_ref().find(|word| *word == "fn") {
                Some(_) => Block::Function(words.next().unwrap_or_default().to_owned()),
                None => Block::Other,
            }
        }
    }
}

/// Whether a character can be in a name or a number.
pub fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn last_word(text: &str) -> &str {
    let text = text.trim_end();
    let start = text.rfind(|c: char| !is_word(c)).map_or(0, |at| at + 1);
    &text[start..]
}

/// The text with spaces for comments, for what is in strings and characters, and for the
/// C preprocessor's lines.
fn mask(text: &str, language: Language) -> String {
    let bytes = text.as_bytes();
    let mut masked = bytes.to_vec();
    let mut blank = |from: usize, to: usize| {
        for byte in &mut masked[from..to.min(bytes.len())] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    let find = |from: usize, what: &str| text.get(from..)?.find(what).map(|found| from + found);
    let mut at = 0;
    let mut is_first = true;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let starts_line = std::mem::replace(&mut is_first, false);
        let end = if rest.starts_with(b"//") {
            let end = find(at, "\n").unwrap_or(bytes.len());
            blank(at, end);
            end
        } else if rest.starts_with(b"/*") {
            let end = comment(bytes, at, language == Language::Rust);
            blank(at, end);
            end
        } else if language == Language::C && starts_line && rest[0] == b'#' {
            let mut end = find(at, "\n").unwrap_or(bytes.len());
            while bytes[at..end].ends_with(b"\\") {
                end = find(end + 1, "\n").unwrap_or(bytes.len());
            }
            blank(at, end);
            end
        } else if let Some(hashes) = raw_string(rest).filter(|_| language == Language::Rust) {
            let open = at + hashes + 2;
            let end = find(open, &format!("\"{}", "#".repeat(hashes))).unwrap_or(bytes.len());
            blank(open, end);
            end + 1 + hashes
        } else if rest[0] == b'"' {
            let end = closing(bytes, at, b'"');
            blank(at + 1, end);
            end + 1
        } else if rest[0] == b'\'' && (language == Language::C || is_character(&text[at..])) {
            let end = closing(bytes, at, b'\'');
            blank(at + 1, end);
            end + 1
        } else {
            // Spaces keep the start of a line.
            is_first = rest[0] == b'\n' || (starts_line && rest[0].is_ascii_whitespace());
            at + 1
        };
        at = end;
    }
    String::from_utf8(masked).expect("what is blanked begins and ends between characters")
}

/// The end of a comment. Those of Rust nest.
fn comment(bytes: &[u8], start: usize, nests: bool) -> usize {
    let (mut at, mut depth) = (start + 2, 1);
    while at < bytes.len() && depth > 0 {
        if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else if nests && bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else {
            at += 1;
        }
    }
    at
}

/// The place of the quote that ends a string or a character.
fn closing(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// The number of `#` of a raw string that begins here: `r"` or `r#"`.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let after = rest.strip_prefix(b"r")?;
    let hashes = after.iter().take_while(|byte| **byte == b'#').count();
    (after.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Whether a character begins here, and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    chars.next() == Some('\\') || chars.next() == Some('\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[Line], number: usize) -> &Line {
        lines.iter().find(|line| line.number == number).unwrap()
    }

    #[test]
    fn only_bodies_of_functions_of_c_count() {
        let text = "\
#define MAX(a) \\
	if (a < 1) { return 2; }
struct s {
	int a; /* 1 < 2 */
};
static const int table[] = {
	1,
};
static int __must_check f(struct s *s,
			  int b)
{
	/* a comment
	 * of 2 lines */
	if (s->a < 1 &&
	    b)
		return '{' + 1; // 3
	pr_info(\"a < %d } \\\" 1\", 1);
}
int g(void);
";
        let lines = lines(text, Language::C);
        let numbers = Vec::from_iter(lines.iter().map(|line| line.number));
        assert_eq!(numbers, [14, 15, 16, 17, 18]);
        assert!(lines.iter().all(|line| line.function == "f"));
        assert_eq!(of(&lines, 15).before, "if (s->a < 1 &&");
        assert_eq!(of(&lines, 16).code, "\t\treturn ' ' + 1;");
        assert_eq!(
            of(&lines, 16).next,
            format!("\tpr_info(\"{}\", 1);", " ".repeat(13))
        );
        assert_eq!(of(&lines, 17).before, "");
    }

    #[test]
    fn only_bodies_of_functions_of_rust_count_and_no_tests() {
        let text = "\
//! 1 < 2
impl<'a> S<'a> {
    const A: usize = 1;
    /// `a < b {`
    pub(crate) fn f(&self, a: [u8; 4]) -> u32
    where
        Self: Sized,
    {
        let c = '\"'; /* { /* 1 */ } */
        let s = r#\"a \" < {\"#;
        g(Point { x: 1 },
          2);
    }
}
#[cfg(test)]
mod tests {
    fn t() {
        1;
    }
}
#[cfg(CONFIG_RUST_KUNIT_TEST)]
mod others {
    fn u() {
        1;
    }
}
fn last<'b>() {
    '\\'';
}
";
        let lines = lines(text, Language::Rust);
        let numbers = Vec::from_iter(lines.iter().map(|line| line.number));
        assert_eq!(numbers, [9, 10, 11, 12, 13, 28, 29]);
        assert_eq!(of(&lines, 9).code, "        let c = ' ';");
        assert_eq!(of(&lines, 10).code, "        let s = r#\"       \"#;");
        assert_eq!(of(&lines, 9).function, "f");
        assert_eq!(of(&lines, 28).function, "last");
    }
}

//! Reads declarations from C headers and lays out struct members as the compiler
//! does.
//!
//! The parser only understands the syntax that the mlx5 headers use. It skips other
//! declarations and keeps the reason, which a later lookup returns as an error.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, anyhow, bail, ensure};

/// Declarations nested deeper than this refer to themselves.
const DEPTH: usize = 32;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Number(i128),
    /// An operator or a bracket: one character, or `<<`, `>>`.
    Mark(&'static str),
    /// `#if` and the like. The parser does not know which branch counts.
    Conditional,
    /// A character that no declaration of interest has.
    Other(char),
}

impl Token {
    fn is(&self, mark: &str) -> bool {
        matches!(self, Token::Mark(m) if *m == mark)
    }

    fn text(&self) -> String {
        match self {
            Token::Word(word) => word.clone(),
            Token::Number(number) => format!("{number:#x}"),
            Token::Mark(mark) => (*mark).to_string(),
            Token::Conditional => "#if".to_string(),
            Token::Other(c) => c.to_string(),
        }
    }
}

/// Where a declaration is.
#[derive(Clone, Copy, Debug)]
struct Origin {
    file: usize,
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Big endian, or too short to have an order.
    Device,
    /// The byte order of the host.
    Host,
}

#[derive(Clone, Debug)]
enum Type {
    Scalar { bytes: usize, order: Order },
    Tagged(String),
    Inline(Group),
    Unknown(String),
}

/// Members of a struct or union.
#[derive(Clone, Debug)]
struct Group {
    union: bool,
    packed: bool,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    /// None for an anonymous member, whose own members are visible outside.
    name: Option<String>,
    kind: Type,
    /// The dimensions, each an expression. Empty for a flexible array.
    dims: Vec<Vec<Token>>,
    bitfield: Option<Vec<Token>>,
}

#[derive(Debug)]
struct Declared {
    origin: Origin,
    group: Result<Group, String>,
}

#[derive(Debug)]
struct Constant {
    origin: Origin,
    value: Formula,
}

#[derive(Debug)]
enum Formula {
    Expression(Vec<Token>),
    /// An enumerator without a value: one more than the constant with this index.
    After(usize),
}

/// Size and alignment in bits.
#[derive(Clone, Copy)]
struct Extent {
    size: usize,
    align: usize,
}

/// The position that a path leads to, in bits of memory.
pub(super) struct Spot {
    /// Offset, in big-endian bit order.
    pub at: usize,
    pub bits: usize,
}

/// How to read the type of the last member of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// An array of numbers is an array.
    Memory,
    /// The last dimension of an array of `u8` is the width of one number.
    Bits,
}

/// Everything declared in some headers.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    files: Vec<String>,
    tags: HashMap<String, Vec<Declared>>,
    constants: Vec<Constant>,
    names: BTreeMap<String, Vec<usize>>,
}

impl Declarations {
    pub fn add(&mut self, file: &str, text: &str) {
        self.files.push(file.to_string());
        let (tokens, defines) = scan(text);
        for (name, line, value) in defines {
            self.define(name, line, Formula::Expression(value));
        }
        for at in 0..tokens.len() {
            let Token::Word(word) = &tokens[at].0 else {
                continue;
            };
            match word.as_str() {
                "struct" | "union" => self.tagged(&tokens, at),
                "enum" => self.enumerators(&tokens, at),
                _ => (),
            }
        }
    }

    fn define(&mut self, name: String, line: usize, value: Formula) {
        let origin = self.origin(line);
        self.names
            .entry(name)
            .or_default()
            .push(self.constants.len());
        self.constants.push(Constant { origin, value });
    }

    fn origin(&self, line: usize) -> Origin {
        Origin {
            file: self.files.len() - 1,
            line,
        }
    }

    fn tagged(&mut self, tokens: &[(Token, usize)], at: usize) {
        let (Some((Token::Word(tag), line)), Some((open, _))) =
            (tokens.get(at + 1), tokens.get(at + 2))
        else {
            return;
        };
        if !open.is("{") {
            return;
        }
        let union = tokens[at].0 == Token::Word("union".to_string());
        let mut parser = Parser { tokens, at: at + 2 };
        let group = parser.group(union).map_err(|e| format!("{e:#}"));
        let origin = self.origin(*line);
        self.tags
            .entry(tag.clone())
            .or_default()
            .push(Declared { origin, group });
    }

    fn enumerators(&mut self, tokens: &[(Token, usize)], at: usize) {
        let mut at = at + 1;
        if matches!(tokens.get(at), Some((Token::Word(_), _))) {
            at += 1;
        }
        if !tokens.get(at).is_some_and(|(t, _)| t.is("{")) {
            return;
        }
        at += 1;
        let mut previous = None;
        // Anything unexpected, a conditional above all, ends the list: the
        // values behind it could be wrong.
        while let Some((Token::Word(name), line)) = tokens.get(at) {
            let (mut end, mut depth) = (at + 1, 0usize);
            while let Some((token, _)) = tokens.get(end) {
                match token {
                    Token::Mark("(") => depth += 1,
                    Token::Mark(")") => depth = depth.saturating_sub(1),
                    Token::Mark("," | "}") if depth == 0 => break,
                    Token::Conditional => return,
                    _ => (),
                }
                end += 1;
            }
            let value = match tokens.get(at + 1) {
                Some((t, _)) if t.is("=") => Formula::Expression(plain(&tokens[at + 2..end])),
                _ => match previous {
                    Some(index) => Formula::After(index),
                    None => Formula::Expression(vec![Token::Number(0)]),
                },
            };
            previous = Some(self.constants.len());
            self.define(name.clone(), *line, value);
            if !tokens.get(end).is_some_and(|(t, _)| t.is(",")) {
                return;
            }
            at = end + 1;
        }
    }

    /// The headers read, for messages.
    pub fn files(&self) -> String {
        self.files.join(", ")
    }

    pub fn has(&self, tag: &str) -> bool {
        self.tags.contains_key(tag)
    }

    fn group(&self, tag: &str) -> Result<&Group> {
        let Some(declared) = self.tags.get(tag) else {
            bail!("no struct or union {tag} in {}", self.files());
        };
        ensure!(declared.len() == 1, "{tag} is declared more than once");
        match &declared[0].group {
            Ok(group) => Ok(group),
            Err(why) => bail!("{} is not understood: {why}", self.locate(tag)),
        }
    }

    /// A tag and where it is declared.
    pub fn locate(&self, tag: &str) -> String {
        match self.tags.get(tag).and_then(|d| d.first()) {
            Some(Declared { origin, .. }) => {
                format!("{tag} ({}:{})", self.files[origin.file], origin.line)
            }
            None => tag.to_string(),
        }
    }

    /// Size of a struct or union in bits of memory.
    pub fn size(&self, tag: &str) -> Result<usize> {
        let (extent, _) = self
            .arrange(self.group(tag)?, 0)
            .with_context(|| self.locate(tag))?;
        Ok(extent.size)
    }

    /// Where `path` leads in a struct or union.
    pub fn find(&self, tag: &str, path: &str, view: View) -> Result<Spot> {
        self.walk(tag, path, view)
            .with_context(|| format!("field {path} of {}", self.locate(tag)))
    }

    fn walk(&self, tag: &str, path: &str, view: View) -> Result<Spot> {
        let mut group = self.group(tag)?;
        let mut at = 0;
        let mut steps = path.split('.').peekable();
        loop {
            let (name, indexes) = step(steps.next().unwrap_or_default())?;
            let (offset, member) = self
                .member(group, name, 0)?
                .ok_or_else(|| anyhow!("there is no {name}"))?;
            let last = steps.peek().is_none();
            let (mut bits, mut dims) = (self.extent(&member.kind, 0)?.size, self.dims(member)?);
            if let Some(width) = &member.bitfield {
                ensure!(last && indexes.is_empty(), "{name} is a bit field");
                ensure!(view == View::Memory, "{name} is a bit field");
                let bits = self.count(width)?;
                // Compilers for little-endian machines count from the lowest bit.
                let low = (at + offset) % 8;
                ensure!(low + bits <= 8, "bit field {name} crosses bytes");
                let at = at + offset - low + (8 - low - bits);
                return Ok(Spot { at, bits });
            }
            if view == View::Bits && matches!(member.kind, Type::Scalar { bytes: 1, .. }) {
                bits *= dims.pop().flatten().unwrap_or(1);
            }
            ensure!(indexes.len() <= dims.len(), "{name} has fewer dimensions");
            let mut index = 0;
            for (place, dim) in dims.iter().enumerate() {
                let i = indexes.get(place).copied().unwrap_or(0);
                // Older code declares a flexible array with zero elements.
                let dim = dim.filter(|d| *d > 0);
                ensure!(dim.is_none_or(|d| i < d), "{name} has no element {i}");
                index = index * dim.unwrap_or(1) + i;
            }
            at += offset + index * bits;
            let next = match &member.kind {
                Type::Tagged(tag) => Some(self.group(tag)?),
                Type::Inline(group) => Some(group),
                Type::Scalar { bytes, order } => {
                    let known = *order == Order::Device || *bytes == 1;
                    ensure!(known, "{name} is in the byte order of the host");
                    None
                }
                Type::Unknown(_) => None,
            };
            if last {
                return Ok(Spot { at, bits });
            }
            group = next.ok_or_else(|| anyhow!("{name} has no members"))?;
        }
    }

    /// A member by name, also within anonymous members, and its offset.
    fn member<'a>(
        &'a self,
        group: &'a Group,
        name: &str,
        depth: usize,
    ) -> Result<Option<(usize, &'a Member)>> {
        let (_, offsets) = self.arrange(group, depth)?;
        for (member, offset) in group.members.iter().zip(offsets) {
            if member.name.as_deref() == Some(name) {
                return Ok(Some((offset, member)));
            }
            if let (None, Type::Inline(inner)) = (&member.name, &member.kind)
                && let Some((more, found)) = self.member(inner, name, depth + 1)?
            {
                return Ok(Some((offset + more, found)));
            }
        }
        Ok(None)
    }

    /// Extent of a group and the offsets of its members.
    fn arrange(&self, group: &Group, depth: usize) -> Result<(Extent, Vec<usize>)> {
        ensure!(depth < DEPTH, "nested too deep");
        let mut whole = Extent { size: 0, align: 8 };
        let mut offsets = Vec::new();
        // Bits used so far. In a union, the bits of the current member.
        let mut end = 0;
        for member in &group.members {
            let name = member.name.as_deref().unwrap_or("an anonymous member");
            let one = self
                .extent(&member.kind, depth + 1)
                .with_context(|| format!("type of {name}"))?;
            if group.union {
                end = 0;
            }
            let align = if group.packed { 8 } else { one.align };
            whole.align = whole.align.max(align);
            if let Some(width) = &member.bitfield {
                let width = self.count(width)?;
                ensure!(width > 0 && !group.packed, "bit field {name}");
                if end % one.size + width > one.size {
                    end = end.next_multiple_of(one.size);
                }
                offsets.push(end);
                end += width;
            } else {
                let dims = self.dims(member)?;
                let count = dims.iter().try_fold(1usize, |count, dim| {
                    count.checked_mul(dim.unwrap_or(0)).context("too large")
                })?;
                end = end.next_multiple_of(align);
                offsets.push(end);
                let bits = one.size.checked_mul(count).context("too large")?;
                end = end.checked_add(bits).context("too large")?;
            }
            whole.size = whole.size.max(end);
        }
        whole.size = whole.size.next_multiple_of(whole.align);
        Ok((whole, offsets))
    }

    fn extent(&self, kind: &Type, depth: usize) -> Result<Extent> {
        match kind {
            Type::Scalar { bytes, .. } => Ok(Extent {
                size: bytes * 8,
                align: bytes * 8,
            }),
            Type::Tagged(tag) => Ok(self.arrange(self.group(tag)?, depth)?.0),
            Type::Inline(group) => Ok(self.arrange(group, depth)?.0),
            Type::Unknown(name) => bail!("type {name} is not known"),
        }
    }

    fn dims(&self, member: &Member) -> Result<Vec<Option<usize>>> {
        let dims = member.dims.iter();
        dims.map(|dim| match dim.as_slice() {
            [] => Ok(None),
            dim => self.count(dim).map(Some),
        })
        .collect()
    }

    fn count(&self, expression: &[Token]) -> Result<usize> {
        let value = self.evaluate(expression, 0)?;
        // A larger value would be a mistake, and would overflow later calculations.
        ensure!((0..1 << 32).contains(&value), "{value} elements");
        Ok(usize::try_from(value)?)
    }

    /// The value of a name.
    pub fn constant(&self, name: &str) -> Result<i128> {
        self.named(name, 0)
    }

    /// Names that start with `prefix` and their values, in the order of the
    /// headers.
    pub fn constants(&self, prefix: &str) -> Vec<(&str, i128)> {
        let mut all: Vec<_> = self
            .names
            .range(prefix.to_string()..)
            .take_while(|(name, _)| name.starts_with(prefix))
            .filter_map(|(name, at)| Some((at[0], name.as_str(), self.named(name, 0).ok()?)))
            .collect();
        all.sort_unstable();
        all.into_iter()
            .map(|(_, name, value)| (name, value))
            .collect()
    }

    fn named(&self, name: &str, depth: usize) -> Result<i128> {
        let Some(places) = self.names.get(name) else {
            bail!("no constant {name} in {}", self.files());
        };
        let mut values = places.iter().map(|&at| {
            let Origin { file, line } = self.constants[at].origin;
            self.value(at, depth)
                .with_context(|| format!("{name} ({}:{line})", self.files[file]))
        });
        let first = values.next().unwrap_or_else(|| bail!("no value"))?;
        for other in values {
            ensure!(other? == first, "{name} has more than one value");
        }
        Ok(first)
    }

    fn value(&self, mut at: usize, depth: usize) -> Result<i128> {
        let mut more = 0;
        loop {
            match &self.constants[at].value {
                Formula::Expression(tokens) => return Ok(self.evaluate(tokens, depth)? + more),
                Formula::After(previous) => {
                    at = *previous;
                    more += 1;
                }
            }
        }
    }

    /// Value of an expression, without the limits of C's types: `1 << 31` is
    /// 0x80000000, as its author intended.
    fn evaluate(&self, tokens: &[Token], depth: usize) -> Result<i128> {
        ensure!(depth < DEPTH, "refers to itself");
        let mut expression = Expression {
            declarations: self,
            tokens,
            at: 0,
            depth,
        };
        let value = expression.binary(0)?;
        match tokens.get(expression.at) {
            None => Ok(value),
            Some(token) => bail!("unexpected {}", token.text()),
        }
    }
}

fn plain(tokens: &[(Token, usize)]) -> Vec<Token> {
    tokens.iter().map(|(token, _)| token.clone()).collect()
}

/// `name[1][2]` as a name and indexes.
fn step(text: &str) -> Result<(&str, Vec<usize>)> {
    let (name, rest) = text.split_at(text.find('[').unwrap_or(text.len()));
    ensure!(!name.is_empty(), "a name is missing");
    let Some(rest) = rest.strip_prefix('[') else {
        return Ok((name, Vec::new()));
    };
    let indexes = rest
        .strip_suffix(']')
        .with_context(|| format!("no ] in {text}"))?
        .split("][")
        .map(|index| index.parse().with_context(|| format!("index {index}")))
        .collect::<Result<_>>()?;
    Ok((name, indexes))
}

type Scanned = (Vec<(Token, usize)>, Vec<(String, usize, Vec<Token>)>);

/// Tokens with their lines, and the bodies of object-like macros.
fn scan(text: &str) -> Scanned {
    let text = uncomment(text);
    let (mut tokens, mut defines) = (Vec::new(), Vec::new());
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let number = number + 1;
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            tokens.extend(tokenize(line).into_iter().map(|token| (token, number)));
            continue;
        };
        let mut directive = directive.trim_start().to_string();
        while directive.ends_with('\\') {
            directive.pop();
            directive.push_str(lines.next().map_or("", |(_, line)| line));
        }
        if let Some(definition) = directive.strip_prefix("define") {
            let definition = definition.trim_start();
            let end = definition
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(definition.len());
            let (name, body) = definition.split_at(end);
            // A bracket right behind the name: a macro with arguments.
            if !body.starts_with('(') && !body.trim().is_empty() {
                defines.push((name.to_string(), number, tokenize(body)));
            }
        } else if ["if", "el", "endif"]
            .iter()
            .any(|d| directive.starts_with(d))
        {
            tokens.push((Token::Conditional, number));
        }
    }
    (tokens, defines)
}

/// Blanks out comments. Lines keep their numbers.
fn uncomment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if let Some(comment) = rest.strip_prefix("/*") {
            let end = comment.find("*/").map_or(rest.len(), |end| end + 4);
            out.push(' ');
            out.extend(rest[..end].chars().filter(|c| *c == '\n'));
            end
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if c == '"' {
            // Skip string literals: they may contain comment marks, and no declaration needs
            // their text.
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '\n' || (c == '"' && !escaped);
                escaped = c == '\\' && !escaped;
                ends
            });
            out.push('"');
            match end {
                Some(end) if rest[1 + end..].starts_with('"') => end + 2,
                Some(end) => end + 1,
                None => rest.len(),
            }
        } else {
            out.push(c);
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    out
}

const MARKS: [&str; 23] = [
    "<<", ">>", "{", "}", "(", ")", "[", "]", ";", ",", ":", "=", "*", "/", "%", "+", "-", "|",
    "&", "^", "<", ">", ".",
];

fn tokenize(line: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = line.trim_start();
    while let Some(c) = rest.chars().next() {
        let length = if c.is_ascii_alphanumeric() || c == '_' {
            let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            let end = rest.find(word).unwrap_or(rest.len());
            tokens.push(match number(&rest[..end]) {
                Some(number) => Token::Number(number),
                None => Token::Word(rest[..end].to_string()),
            });
            end
        } else if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            tokens.push(Token::Mark(mark));
            mark.len()
        } else {
            tokens.push(Token::Other(c));
            c.len_utf8()
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

fn number(text: &str) -> Option<i128> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(['u', 'l']);
    let value = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(octal) = digits.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        u64::from_str_radix(octal, 8)
    } else {
        digits.parse()
    };
    value.ok().map(i128::from)
}

/// Reads members of structs.
struct Parser<'a> {
    tokens: &'a [(Token, usize)],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Result<&Token> {
        let token = self.tokens.get(self.at).map(|(token, _)| token);
        token.context("the file ends")
    }

    /// Moves on if the next token is `mark`.
    fn eat(&mut self, mark: &str) -> bool {
        let found = self.peek().is_ok_and(|token| token.is(mark));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: &str) -> Result<()> {
        if self.eat(mark) {
            return Ok(());
        }
        let found = self.peek()?.text();
        let line = self.tokens[self.at].1;
        bail!("line {line} has {found} where {mark} should be")
    }

    fn word(&mut self) -> Result<String> {
        match self.peek()? {
            Token::Word(word) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            other => {
                let line = self.tokens[self.at].1;
                bail!("line {line} has {} where a name should be", other.text())
            }
        }
    }

    /// A group from its brace, with the attributes behind it.
    fn group(&mut self, union: bool) -> Result<Group> {
        self.expect("{")?;
        let members = self.members("}")?;
        let mut packed = false;
        while let Ok(Token::Word(word)) = self.peek() {
            match word.as_str() {
                "__packed" => {
                    packed = true;
                    self.at += 1;
                }
                "__attribute__" | "__aligned" => bail!("{word} is not understood"),
                _ => break,
            }
        }
        Ok(Group {
            union,
            packed,
            members,
        })
    }

    fn members(&mut self, close: &str) -> Result<Vec<Member>> {
        let mut members = Vec::new();
        while !self.eat(close) {
            if !self.eat(";") {
                self.member(&mut members)?;
            }
        }
        Ok(members)
    }

    fn member(&mut self, out: &mut Vec<Member>) -> Result<()> {
        let first = self.word()?;
        match first.as_str() {
            "const" | "volatile" => return self.member(out),
            "struct_group" => return self.struct_group(out),
            "DECLARE_FLEX_ARRAY" => {
                self.expect("(")?;
                let word = self.word()?;
                let kind = self.kind(word)?;
                self.expect(",")?;
                let name = Some(self.word()?);
                self.expect(")")?;
                self.expect(";")?;
                out.push(Member {
                    name,
                    kind,
                    dims: vec![Vec::new()],
                    bitfield: None,
                });
                return Ok(());
            }
            _ => (),
        }
        let kind = self.kind(first)?;
        if self.eat(";") {
            // `struct tag { … };` declares a type, no member.
            if matches!(&kind, Type::Inline(_)) {
                out.push(Member {
                    name: None,
                    kind,
                    dims: Vec::new(),
                    bitfield: None,
                });
            }
            return Ok(());
        }
        loop {
            out.push(self.declarator(&kind)?);
            if self.eat(";") {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    /// Members of a named group, which are also members of the parent.
    fn struct_group(&mut self, out: &mut Vec<Member>) -> Result<()> {
        self.expect("(")?;
        let name = self.word()?;
        self.expect(",")?;
        let group = Group {
            union: false,
            packed: false,
            members: self.members(")")?,
        };
        let both = [None, Some(name)].map(|name| Member {
            name,
            kind: Type::Inline(group.clone()),
            dims: Vec::new(),
            bitfield: None,
        });
        out.push(Member {
            name: None,
            kind: Type::Inline(Group {
                union: true,
                packed: false,
                members: both.into(),
            }),
            dims: Vec::new(),
            bitfield: None,
        });
        Ok(())
    }

    fn kind(&mut self, first: String) -> Result<Type> {
        let device = |bytes| Type::Scalar {
            bytes,
            order: Order::Device,
        };
        let host = |bytes| Type::Scalar {
            bytes,
            order: Order::Host,
        };
        Ok(match first.as_str() {
            "struct" | "union" => {
                let union = first == "union";
                if self.peek()?.is("{") {
                    return Ok(Type::Inline(self.group(union)?));
                }
                let tag = self.word()?;
                if self.peek()?.is("{") {
                    let group = self.group(union)?;
                    // Without a member after it, this only declares the tag.
                    return Ok(if self.peek()?.is(";") {
                        Type::Tagged(tag)
                    } else {
                        Type::Inline(group)
                    });
                }
                Type::Tagged(tag)
            }
            "enum" => {
                self.word()?;
                host(4)
            }
            "u8" | "__u8" | "s8" | "__s8" | "uint8_t" | "int8_t" | "char" | "bool" => device(1),
            "__be16" => device(2),
            "__be32" => device(4),
            "__be64" => device(8),
            "u16" | "__u16" | "s16" | "__s16" | "__le16" | "uint16_t" | "short" => host(2),
            "u32" | "__u32" | "s32" | "__s32" | "__le32" | "uint32_t" | "int" => host(4),
            "u64" | "__u64" | "s64" | "__s64" | "__le64" | "uint64_t" => host(8),
            _ => Type::Unknown(first),
        })
    }

    fn declarator(&mut self, kind: &Type) -> Result<Member> {
        let mut kind = kind.clone();
        while self.eat("*") {
            kind = Type::Scalar {
                bytes: 8,
                order: Order::Host,
            };
        }
        let name = Some(self.word()?);
        let mut dims = Vec::new();
        while self.eat("[") {
            dims.push(self.until(&["]"])?);
            self.expect("]")?;
        }
        let bitfield = if self.eat(":") {
            Some(self.until(&[";", ","])?)
        } else {
            None
        };
        Ok(Member {
            name,
            kind,
            dims,
            bitfield,
        })
    }

    /// The tokens before one of `marks`. Does not consume the mark.
    fn until(&mut self, marks: &[&str]) -> Result<Vec<Token>> {
        let start = self.at;
        while !marks
            .iter()
            .any(|mark| self.peek().is_ok_and(|t| t.is(mark)))
        {
            self.peek()?;
            self.at += 1;
        }
        Ok(plain(&self.tokens[start..self.at]))
    }
}

/// Computes an integer expression.
struct Expression<'a> {
    declarations: &'a Declarations,
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl Expression<'_> {
    fn binary(&mut self, weakest: u8) -> Result<i128> {
        let mut left = self.unary()?;
        while let Some(Token::Mark(mark)) = self.tokens.get(self.at) {
            let strength = match *mark {
                "|" => 1,
                "^" => 2,
                "&" => 3,
                "<<" | ">>" => 4,
                "+" | "-" => 5,
                "*" | "/" | "%" => 6,
                _ => break,
            };
            if strength <= weakest {
                break;
            }
            self.at += 1;
            let right = self.binary(strength)?;
            left = apply(mark, left, right).with_context(|| format!("{left} {mark} {right}"))?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<i128> {
        let token = self.tokens.get(self.at).context("a value is missing")?;
        self.at += 1;
        match token {
            Token::Number(number) => Ok(*number),
            Token::Mark("-") => Ok(self.unary()?.checked_neg().context("too large")?),
            // A cast to `u64` has no effect.
            Token::Mark("(") if self.tokens.get(self.at) == Some(&Token::Word("u64".into())) => {
                self.at += 1;
                self.close()?;
                self.unary()
            }
            Token::Mark("(") => {
                let value = self.binary(0)?;
                self.close()?;
                Ok(value)
            }
            Token::Word(name) if self.tokens.get(self.at).is_some_and(|t| t.is("(")) => {
                self.at += 1;
                let value = self.binary(0)?;
                let value = match name.as_str() {
                    "BIT" | "BIT_ULL" => apply("<<", 1, value),
                    "GENMASK" | "GENMASK_ULL" => {
                        let comma = self.tokens.get(self.at).is_some_and(|t| t.is(","));
                        ensure!(comma, "{name} has one argument");
                        self.at += 1;
                        let low = self.binary(0)?;
                        apply("<<", 1, value + 1)
                            .zip(apply("<<", 1, low))
                            .map(|(high, low)| high - low)
                    }
                    // The device reads the value itself.
                    "cpu_to_be16" | "cpu_to_be32" | "cpu_to_be64" => Some(value),
                    _ => bail!("{name}() is not understood"),
                };
                self.close()?;
                value.with_context(|| format!("argument of {name}"))
            }
            Token::Word(name) => self.declarations.named(name, self.depth + 1),
            other => bail!("{} is not understood", other.text()),
        }
    }

    fn close(&mut self) -> Result<()> {
        let closed = self.tokens.get(self.at).is_some_and(|t| t.is(")"));
        ensure!(closed, ") is missing");
        self.at += 1;
        Ok(())
    }
}

/// The result of an operator, or none if it is not a 64-bit number.
fn apply(mark: &str, left: i128, right: i128) -> Option<i128> {
    let shift = u32::try_from(right).ok().filter(|shift| *shift <= 64);
    let value = match mark {
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "<<" => left.checked_mul(1 << shift?)?,
        ">>" => left >> shift?,
        "+" => left.checked_add(right)?,
        "-" => left.checked_sub(right)?,
        "*" => left.checked_mul(right)?,
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        _ => return None,
    };
    (value.unsigned_abs() <= 1 << 64).then_some(value)
}

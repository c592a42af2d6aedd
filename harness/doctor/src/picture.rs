//! A picture of a host: everything that the doctor reads from it. The report depends only
//! on the picture, so a picture that was saved to a file gives the same report on another
//! machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::config;

/// The schema name in the files.
const SCHEMA: &str = "p2p-doctor-host";
const VERSION: u32 = 1;

/// Larger files are not pictures.
pub const LARGEST: u64 = 64 << 20;

/// Everything that was read from a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    schema: String,
    version: u32,
    /// The number of entries. A file that was cut off has fewer.
    entries: Option<usize>,
    /// Folders and their entries.
    #[serde(rename = "in", default)]
    pub folders: BTreeMap<String, BTreeMap<String, Entry>>,
}

/// An entry in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// A file's text, without surrounding white space.
    Text(String),
    /// A link with its target.
    Link {
        /// Absolute, without links in it.
        link: String,
    },
    /// A device's configuration space.
    Config {
        /// The number of bytes that could be read. Users other than root get 64 bytes.
        size: usize,
        /// The bytes by the offset of the first one, both in hexadecimal. All other bytes
        /// are 0 or were left out.
        bytes: BTreeMap<String, String>,
    },
    /// It exists but cannot be read.
    Unreadable {
        /// The reason.
        unreadable: String,
    },
}

impl Default for Picture {
    fn default() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            entries: None,
            folders: BTreeMap::new(),
        }
    }
}

impl Picture {
    /// Parses a file of [`Picture::dump`], or one written by hand.
    pub fn parse(text: &str) -> Result<Self> {
        // Mail programs and Windows change the ends of lines.
        let text = text.replace("\r\n", "\n");
        let mut picture: Self = toml::from_str(&text).map_err(|error| {
            // The error as text quotes the line, which may be long or have escapes.
            let at = error.span().map_or(0, |span| span.start);
            let line = text
                .get(..at)
                .map_or(1, |above| above.matches('\n').count() + 1);
            anyhow!(
                "this is not a dump of p2p-doctor, or it is damaged or was cut off: take a new \
                 one (line {line}: {})",
                in_short(error.message())
            )
        })?;
        ensure!(
            picture.schema == SCHEMA,
            "this is not a dump of p2p-doctor: it says that it is {:?}",
            in_short(&picture.schema)
        );
        ensure!(
            picture.version == VERSION,
            "the dump is of version {}, and this program knows version {VERSION}",
            picture.version
        );
        let there = picture.count();
        if let Some(entries) = picture.entries
            && entries != there
        {
            bail!("the dump was cut off or changed: it has {there} of {entries} entries");
        }
        // The text will be printed on a terminal, so control characters are removed.
        for (name, folder) in std::mem::take(&mut picture.folders) {
            let clean = folder
                .into_iter()
                .map(|(name, entry)| (plain(&name), entry.plain()));
            picture.folders.insert(plain(&name), clean.collect());
        }
        Ok(picture)
    }

    /// The picture as a file.
    pub fn dump(&self) -> Result<String> {
        let mut picture = self.clone();
        picture.entries = Some(self.count());
        Ok(toml::to_string_pretty(&picture)?)
    }

    fn count(&self) -> usize {
        self.folders.values().map(BTreeMap::len).sum()
    }

    /// Adds an entry.
    pub fn put(&mut self, path: &str, entry: Entry) {
        if let Some((folder, name)) = path.rsplit_once('/') {
            let folder = self.folders.entry(folder.to_owned()).or_default();
            folder.insert(name.to_owned(), entry.plain());
        }
    }

    fn get(&self, path: &str) -> Option<&Entry> {
        let (folder, name) = path.rsplit_once('/')?;
        self.folders.get(folder)?.get(name)
    }

    /// A file's text.
    pub fn read(&self, path: &str) -> Option<&str> {
        match self.get(path)? {
            Entry::Text(text) => Some(text.trim()),
            _ => None,
        }
    }

    /// The target of a link.
    pub fn link(&self, path: &str) -> Option<&str> {
        match self.get(path)? {
            Entry::Link { link } => Some(link),
            _ => None,
        }
    }

    /// The last part of a link's target, e.g. a driver's name.
    pub fn leads_to(&self, path: &str) -> Option<&str> {
        self.link(path)?.rsplit('/').next()
    }

    /// The readable part of a device's configuration space.
    pub fn config(&self, path: &str) -> Option<Vec<u8>> {
        match self.get(path)? {
            Entry::Config { size, bytes } => Some(config::unpack(*size, bytes)),
            _ => None,
        }
    }

    /// Why an existing entry cannot be read.
    pub fn unreadable(&self, path: &str) -> Option<&str> {
        match self.get(path)? {
            Entry::Unreadable { unreadable } => Some(unreadable),
            _ => None,
        }
    }

    /// The names in a folder, in alphabetical order.
    pub fn list(&self, folder: &str) -> impl Iterator<Item = &str> {
        let entries = self.folders.get(folder).into_iter().flatten();
        entries.map(|(name, _)| name.as_str())
    }
}

impl Entry {
    fn plain(self) -> Self {
        match self {
            Self::Text(text) => Self::Text(plain(&text)),
            Self::Link { link } => Self::Link { link: plain(&link) },
            Self::Unreadable { unreadable } => Self::Unreadable {
                unreadable: plain(&unreadable),
            },
            Self::Config { .. } => self,
        }
    }
}

/// The begin of a text, without control characters.
fn in_short(text: &str) -> String {
    plain(text).chars().take(200).collect()
}

/// Text without control characters.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => plain.push(c),
            c if c.is_control() => {
                let _ = write!(plain, "\\x{:02x}", u32::from(c));
            }
            c => plain.push(c),
        }
    }
    plain
}

//! A picture of a host: what the doctor reads of it, and nothing else. Everything that
//! is said about a host is said from its picture, so a picture that was written to a file
//! and read on another machine leads to the same words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::config;

/// What the files say that they are.
const SCHEMA: &str = "p2p-doctor-host";
const VERSION: u32 = 1;

/// The larger ones are no pictures.
pub const LARGEST: u64 = 64 << 20;

/// What was read of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    schema: String,
    version: u32,
    /// How many entries there are: a file that was cut off has fewer.
    entries: Option<usize>,
    /// Folders, and what is in them.
    #[serde(rename = "in", default)]
    pub folders: BTreeMap<String, BTreeMap<String, Entry>>,
}

/// What is in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// A file's text, without space around it.
    Text(String),
    /// A link, and the path that it leads to.
    Link {
        /// Absolute, without links in it.
        link: String,
    },
    /// A device's configuration space.
    Config {
        /// How much could be read: who is not root gets 64 bytes.
        size: usize,
        /// Bytes that count, by the place of the first one, both in hexadecimal; others
        /// are 0, or were left out.
        bytes: BTreeMap<String, String>,
    },
    /// It is there and cannot be read.
    Unreadable {
        /// Why.
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
    /// Reads what [`Picture::dump`] wrote, or what somebody wrote by hand.
    pub fn parse(text: &str) -> Result<Self> {
        let mut picture: Self = toml::from_str(text).context(
            "this is not a dump of p2p-doctor, or it is damaged or was cut off: take a new one",
        )?;
        ensure!(
            picture.schema == SCHEMA,
            "this is not a dump of p2p-doctor: it says that it is {:?}",
            plain(&picture.schema)
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
        // What is read here is printed on somebody's terminal.
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

    /// Where a link leads.
    pub fn link(&self, path: &str) -> Option<&str> {
        match self.get(path)? {
            Entry::Link { link } => Some(link),
            _ => None,
        }
    }

    /// The last part of what a link leads to, e.g. a driver's name.
    pub fn leads_to(&self, path: &str) -> Option<&str> {
        self.link(path)?.rsplit('/').next()
    }

    /// A device's configuration space: how much could be read, and the bytes.
    pub fn config(&self, path: &str) -> Option<Vec<u8>> {
        match self.get(path)? {
            Entry::Config { size, bytes } => Some(config::unpack(*size, bytes)),
            _ => None,
        }
    }

    /// Why something that is there cannot be read.
    pub fn unreadable(&self, path: &str) -> Option<&str> {
        match self.get(path)? {
            Entry::Unreadable { unreadable } => Some(unreadable),
            _ => None,
        }
    }

    /// The names in a folder, in the order of the alphabet.
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

/// Text without what a terminal would obey.
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

//! Checks from outside of the guest whether bytes are where the guest reports them.
//!
//! The VRAM of an emulated GPU is a file on the host. A program in the guest sends
//! requests, one line of JSON each ([`Request`]), and gets the answer `ok` or `fail
//! <why>`. [`Judge`] makes the answers and [`serve`] carries the lines. The judge sees no
//! guest memory and trusts no statement of the guest about it. Only the file counts.

#![warn(unused_crate_dependencies)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use endpoint::memory::Memory;
use pascal::mmu::Tables;
use pascal::space::{Place, Space, Vram};
use rustix::fs::SeekFrom;
use serde::Deserialize;

pub mod pattern;

use pattern::{PAGE, POISON};

/// A guest's request. GPUs have the numbers of the guest's device nodes.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Remember the current content of VRAM.
    Snapshot {
        /// The GPU.
        gpu: usize,
    },
    /// Check that the listed pages hold their content. Other pages do not matter.
    Contains {
        /// The GPU.
        gpu: usize,
        /// Pages and their content.
        pages: Vec<Page>,
    },
    /// Like `Contains`. Also check that pages in `freed` are poisoned, and that every
    /// other page matches the snapshot.
    Check {
        /// The GPU.
        gpu: usize,
        /// Pages and their content.
        pages: Vec<Page>,
        /// Byte offsets of pages that were freed since the snapshot.
        #[serde(default)]
        freed: Vec<u64>,
    },
    /// Check that VRAM holds each of these contents in a page of its own. For a GPU whose
    /// driver does not report where a page is.
    Somewhere {
        /// The GPU.
        gpu: usize,
        /// Contents.
        pages: Vec<Content>,
    },
    /// Check where page tables in VRAM map each address, in any address space, and that it
    /// is writable. For a GPU that has its page tables in VRAM, when no driver can be asked to
    /// use them.
    Mapped {
        /// The GPU.
        gpu: usize,
        /// Addresses.
        pages: Vec<Address>,
    },
}

/// An address of the GPU's virtual memory.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// The address.
    pub va: u64,
    /// The content of the page in VRAM that it maps to. `None` if it must not be mapped.
    pub content: Option<Content>,
    /// Whether it maps to a page of zeros instead.
    #[serde(default)]
    pub zeros: bool,
}

impl Address {
    /// The expected content, and its description.
    fn expected(&self) -> Option<([u8; PAGE], String)> {
        if self.zeros {
            return Some(([0; PAGE], "a page of zeros".to_owned()));
        }
        let Content { seed, index } = self.content?;
        let name = format!("page {index} of seed {seed:#x}");
        Some((pattern::page(seed, index), name))
    }
}

/// The expected content of some page in VRAM.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// The seed of the pattern.
    pub seed: u64,
    /// The index of the page in the pattern.
    pub index: u64,
}

/// A page of VRAM and its expected content.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Byte offset in VRAM.
    pub off: u64,
    /// The seed of the pattern.
    pub seed: u64,
    /// The index of the page in the pattern.
    pub index: u64,
}

/// Judges the VRAM files of one guest.
pub struct Judge {
    vram: Vec<PathBuf>,
    snapshots: Vec<Option<Vec<u8>>>,
}

/// The reason of a failed check.
type Reason = String;

impl Judge {
    /// `vram[n]` is the file behind GPU n.
    pub fn new(vram: Vec<PathBuf>) -> Self {
        let snapshots = vram.iter().map(|_| None).collect();
        Self { vram, snapshots }
    }

    /// Answers one request.
    pub fn answer(&mut self, line: &str) -> String {
        let verdict = serde_json::from_str(line)
            .map_err(|error| format!("not a question: {error}"))
            .and_then(|request| self.judge(&request));
        match verdict {
            Ok(()) => "ok".to_owned(),
            Err(reason) => format!("fail {}", reason.replace('\n', " ")),
        }
    }

    fn judge(&mut self, request: &Request) -> Result<(), Reason> {
        match request {
            Request::Snapshot { gpu } => {
                let vram = self.read(*gpu)?;
                self.snapshots[*gpu] = Some(vram);
                Ok(())
            }
            Request::Contains { gpu, pages } => {
                let vram = self.read(*gpu)?;
                pages.iter().try_for_each(|page| holds(&vram, page))
            }
            Request::Check { gpu, pages, freed } => {
                let vram = self.read(*gpu)?;
                let before = self.snapshots[*gpu]
                    .as_deref()
                    .ok_or("there is no snapshot to compare with")?;
                check(before, &vram, pages, freed)
            }
            Request::Somewhere { gpu, pages } => somewhere(self.path(*gpu)?, pages),
            Request::Mapped { gpu, pages } => mapped(self.path(*gpu)?, pages),
        }
    }

    fn path(&self, gpu: usize) -> Result<&Path, Reason> {
        let path = self.vram.get(gpu);
        path.map(PathBuf::as_path)
            .ok_or_else(|| format!("there is no GPU {gpu}"))
    }

    fn read(&self, gpu: usize) -> Result<Vec<u8>, Reason> {
        let path = self.path(gpu)?;
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(bytes)
    }
}

/// The page at `off`. Fails if `off` is not the start of a page.
fn at(vram: &[u8], off: u64) -> Result<&[u8], Reason> {
    usize::try_from(off)
        .ok()
        .filter(|off| off % PAGE == 0)
        .and_then(|off| vram.get(off..off.checked_add(PAGE)?))
        .ok_or_else(|| format!("{off:#x} is no page of VRAM"))
}

fn holds(vram: &[u8], page: &Page) -> Result<(), Reason> {
    let seen = at(vram, page.off)?;
    let expected = pattern::page(page.seed, page.index);
    same(page.off, &expected, seen, || {
        format!("page {} of seed {:#x}", page.index, page.seed)
    })
}

fn somewhere(vram: &Path, pages: &[Content]) -> Result<(), Reason> {
    let mut wanted = HashMap::<Vec<u8>, Vec<&Content>>::new();
    for page in pages {
        let bytes = pattern::page(page.seed, page.index).to_vec();
        wanted.entry(bytes).or_default().push(page);
    }
    each_page(vram, |_, page| {
        if let Some(left) = wanted.get_mut(page) {
            left.pop();
        }
    })?;
    let missing = Vec::from_iter(wanted.values().flatten());
    match missing.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "VRAM holds {} of {} pages; page {} of seed {:#x} is nowhere",
            pages.len() - missing.len(),
            pages.len(),
            first.index,
            first.seed
        )),
    }
}

/// Tries each page of VRAM as the first directory of an address space. A page that is not
/// one maps nothing, because its content would have to point to further tables in VRAM.
fn mapped(path: &Path, pages: &[Address]) -> Result<(), Reason> {
    let vram = Vram::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let space = Space {
        vram: &vram,
        memory: &Memory::default(),
    };
    let mut places = vec![Vec::new(); pages.len()];
    each_page(path, |off, _| {
        let tables = Tables {
            root: Place::vram(off),
            limit: u64::MAX,
        };
        for (page, places) in pages.iter().zip(&mut places) {
            let found = tables.translate(space, page.va);
            places.extend(found.ok().and_then(|found| {
                let place = found.at(page.va)?;
                Some((place, found.is_writable))
            }));
        }
    })?;
    for (page, places) in pages.iter().zip(&places) {
        leads(space, page, places)?;
    }
    Ok(())
}

/// Whether an address maps to the right content at all of these places, and is writable.
fn leads(space: Space<'_>, page: &Address, places: &[(Place, bool)]) -> Result<(), Reason> {
    let va = page.va;
    let (content, name) = match (page.expected(), places.first()) {
        (Some(expected), Some(_)) => expected,
        (None, None) => return Ok(()),
        (Some(_), None) => return Err(format!("address {va:#x} is not mapped")),
        (None, Some((place, _))) => return Err(format!("address {va:#x} is mapped to {place}")),
    };
    for (place, is_writable) in places {
        let mut seen = [0; PAGE];
        let read = space.read(*place, &mut seen);
        if read.is_err() || seen != content {
            return Err(format!(
                "address {va:#x} is mapped to {place}, which is not {name}"
            ));
        }
        if !is_writable {
            return Err(format!("address {va:#x} is mapped read-only"));
        }
    }
    Ok(())
}

/// The pages of VRAM that hold neither poison nor zeros: those in use, and those that were
/// written after they were freed. For the test GPU, which poisons what is freed.
pub fn neither_free_nor_new(vram: &Path) -> Result<Vec<u64>, String> {
    let mut found = Vec::new();
    each_page(vram, |off, page| {
        if page != [POISON; PAGE] && page != [0; PAGE] {
            found.push(off);
        }
    })?;
    Ok(found)
}

/// Reads only the written parts of the file. VRAM is large, and most of its file is a hole.
fn each_page(vram: &Path, mut look: impl FnMut(u64, &[u8])) -> Result<(), Reason> {
    let mut read = || -> io::Result<()> {
        let file = File::open(vram)?;
        let mut page = vec![0; PAGE];
        let mut off = 0;
        while let Some(begin) = extent(&file, SeekFrom::Data(off))? {
            let end = extent(&file, SeekFrom::Hole(begin))?.unwrap_or(begin);
            off = begin / PAGE as u64 * PAGE as u64;
            while off < end {
                match file.read_exact_at(&mut page, off) {
                    Ok(()) => look(off, &page),
                    // A part of a page at the end.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                    Err(error) => return Err(error),
                }
                off += PAGE as u64;
            }
        }
        Ok(())
    };
    read().map_err(|error| format!("{}: {error}", vram.display()))
}

/// Where the next data or hole of a file begins, if there is one.
fn extent(file: &File, from: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, from) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn same(off: u64, expected: &[u8], seen: &[u8], what: impl Fn() -> String) -> Result<(), Reason> {
    let differs = expected.iter().zip(seen).filter(|(a, b)| a != b).count();
    match expected.iter().zip(seen).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(byte) => Err(format!(
            "VRAM page {off:#x} should hold {}: {differs} bytes differ, the first is byte {byte}, \
             expected {:#04x}, seen {:#04x}",
            what(),
            expected[byte],
            seen[byte],
        )),
    }
}

fn check(before: &[u8], now: &[u8], pages: &[Page], freed: &[u64]) -> Result<(), Reason> {
    if before.len() != now.len() {
        return Err(format!(
            "VRAM had {} bytes and has {}",
            before.len(),
            now.len()
        ));
    }
    let mut spoken_for = vec![false; now.len() / PAGE];
    for off in pages
        .iter()
        .map(|page| page.off)
        .chain(freed.iter().copied())
    {
        at(now, off)?;
        let taken = &mut spoken_for[off as usize / PAGE];
        if *taken {
            return Err(format!("VRAM page {off:#x} is listed twice"));
        }
        *taken = true;
    }
    for page in pages {
        holds(now, page)?;
    }
    for &off in freed {
        same(off, &[POISON; PAGE], at(now, off)?, || "poison".to_owned())?;
    }
    let others = spoken_for.iter().enumerate().filter(|(_, taken)| !**taken);
    for (number, _) in others {
        let off = number * PAGE;
        same(
            off as u64,
            &before[off..off + PAGE],
            &now[off..off + PAGE],
            || "what it held before".to_owned(),
        )?;
    }
    // The rest of a file that does not end at a page boundary.
    let tail = now.len() / PAGE * PAGE;
    same(tail as u64, &before[tail..], &now[tail..], || {
        "what it held before".to_owned()
    })
}

/// Answers the lines of a stream until it ends. `record` receives each request with its
/// answer.
pub fn serve(
    mut answer: impl FnMut(&str) -> String,
    stream: impl Read,
    mut answers: impl Write,
    mut record: impl FnMut(&str, &str),
) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        if !line.trim().is_empty() {
            let answer = answer(line.trim());
            record(line.trim(), &answer);
            writeln!(answers, "{answer}")?;
            answers.flush()?;
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Questions to QEMU on the socket by which it asks us: `vfio_user` serves a client, and
//! has no messages of its own. So QEMU's socket ends here; what it asks is passed on to
//! `vfio_user`, with its files, and what it answers is sorted out.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Bytes of a message's header: id (2), command (2), size (4), flags (4), error (4).
const HEADER: usize = 16;
/// The larger part of a message is data; QEMU announces at most this much at once.
const MAX_MESSAGE: usize = 2 << 20;
/// How many files may come with one message.
const MAX_FILES: usize = 16;
/// Commands of the protocol.
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
/// What a reply has in its flags, and in the bit for errors.
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;
/// Where the data of both begin: after the address (8) and the count (8), as the protocol
/// has it. The first QEMU with these messages had a count of 4 bytes.
const DMA_DATA: usize = HEADER + 16;

/// EIO, when there is nobody to ask any more.
const GONE: u32 = 5;

/// What QEMU is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read so many bytes.
    Read(usize),
    /// Write these.
    Write(Vec<u8>),
}

/// A question to QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address, as the device uses it.
    pub address: u64,
    /// What for.
    pub access: Access,
}

/// What was read, or nothing if it was written; or the error's number.
pub type Answer = Result<Vec<u8>, u32>;

/// Who is to hear of the answer to a message.
type Waiting = Arc<Mutex<HashMap<u16, Sender<Answer>>>>;

/// The way to ask QEMU.
pub struct Client {
    to_qemu: Arc<Mutex<Option<UnixStream>>>,
    waiting: Waiting,
    next: Mutex<u16>,
}

/// QEMU's socket, and the one of `vfio_user` behind it.
pub struct Proxy {
    listener: UnixListener,
    inner: SocketAddr,
    client: Arc<Client>,
}

impl Proxy {
    /// Listens at `socket`; gives the listener for `vfio_user` as well.
    pub fn new(socket: &Path) -> Result<(Self, OwnedFd)> {
        // A name without a file.
        let name = format!("vfio-user-{}", std::process::id());
        let inner = SocketAddr::from_abstract_name(name).context("a name without a file")?;
        let behind = UnixListener::bind_addr(&inner).context("a socket within the process")?;
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let client = Arc::new(Client {
            to_qemu: Arc::default(),
            waiting: Arc::default(),
            next: Mutex::new(0),
        });
        let proxy = Self {
            listener,
            inner,
            client,
        };
        Ok((proxy, OwnedFd::from(behind)))
    }

    /// How to ask QEMU, once it has come.
    pub fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }

    /// Waits for QEMU, and passes on what it and `vfio_user` say until one of them goes.
    pub fn run(self) -> io::Result<()> {
        let (qemu, _) = self.listener.accept()?;
        let inner = UnixStream::connect_addr(&self.inner)?;
        *lock(&self.client.to_qemu) = Some(qemu.try_clone()?);
        let answers = thread::spawn({
            let (inner, to_qemu) = (inner.try_clone()?, Arc::clone(&self.client.to_qemu));
            move || {
                while let Ok(Some(message)) = receive(&inner) {
                    let sent = match &mut *lock(&to_qemu) {
                        Some(qemu) => send(qemu, &message),
                        None => break,
                    };
                    if sent.is_err() {
                        break;
                    }
                }
            }
        });
        let ended = loop {
            match receive(&qemu) {
                Ok(Some(message)) => {
                    if self.client.is_answer(&message.bytes) {
                        continue;
                    }
                    if let Err(error) = send(&inner, &message) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // The others learn of it, and whoever waits for an answer.
        let _ = inner.shutdown(Shutdown::Both);
        let _ = qemu.shutdown(Shutdown::Both);
        *lock(&self.client.to_qemu) = None;
        lock(&self.client.waiting).clear();
        answers
            .join()
            .map_err(|_| io::Error::other("a thread of the proxy panicked"))?;
        ended
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("a thread that panicked has ended the process")
}

impl Client {
    /// Asks, and waits for the answer. Nothing may be locked that a message of QEMU needs.
    ///
    /// QEMU does not wait for a write to arrive in another process. A read comes back after
    /// what was written before it, as on PCI.
    pub fn ask(&self, question: &Question) -> Answer {
        let answer = self.ask_once(question)?;
        if let Access::Write(_) = question.access {
            self.ask_once(&Question {
                access: Access::Read(1),
                ..*question
            })?;
        }
        Ok(answer)
    }

    fn ask_once(&self, question: &Question) -> Answer {
        let (sender, receiver): (_, Receiver<Answer>) = channel();
        let id = {
            let mut next = lock(&self.next);
            *next = next.wrapping_add(1);
            *next
        };
        lock(&self.waiting).insert(id, sender);
        let sent = match &mut *lock(&self.to_qemu) {
            Some(qemu) => qemu.write_all(&message(id, question)),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if sent.is_err() {
            return Err(GONE);
        }
        let answer = receiver.recv().unwrap_or(Err(GONE))?;
        let wanted = match question.access {
            Access::Read(len) => len,
            Access::Write(_) => 0,
        };
        Ok(answer.into_iter().take(wanted).collect())
    }

    /// Takes the answer to a question; tells whether it was one.
    fn is_answer(&self, bytes: &[u8]) -> bool {
        let header = Header::of(bytes);
        if header.flags & TYPE != REPLY || ![DMA_READ, DMA_WRITE].contains(&header.command) {
            return false;
        }
        let answer = if header.flags & ERROR != 0 {
            Err(header.error)
        } else {
            Ok(bytes.get(DMA_DATA..).unwrap_or_default().to_vec())
        };
        if let Some(sender) = lock(&self.waiting).remove(&header.id) {
            // Nobody waits if the process is about to end.
            let _ = sender.send(answer);
        }
        true
    }
}

struct Header {
    id: u16,
    command: u16,
    size: u32,
    flags: u32,
    error: u32,
}

impl Header {
    /// `bytes`: at least a header.
    fn of(bytes: &[u8]) -> Self {
        let four = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        let two = |at: usize| u16::from_ne_bytes([0, 1].map(|n| bytes[at + n]));
        Self {
            id: two(0),
            command: two(2),
            size: four(4),
            flags: four(8),
            error: four(12),
        }
    }
}

fn message(id: u16, question: &Question) -> Vec<u8> {
    let (command, len, data): (_, _, &[u8]) = match &question.access {
        Access::Read(len) => (DMA_READ, *len, &[]),
        Access::Write(data) => (DMA_WRITE, data.len(), data),
    };
    let size = DMA_DATA + data.len();
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(id.to_ne_bytes());
    bytes.extend(command.to_ne_bytes());
    bytes.extend((size as u32).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(question.address.to_ne_bytes());
    bytes.extend((len as u64).to_ne_bytes());
    bytes.extend(data);
    bytes
}

struct Message {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

/// The next message; nothing if the other end has gone.
fn receive(mut stream: &UnixStream) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream.as_fd(), &mut parts, &mut ancillary, flags)?.bytes;
    if got == 0 {
        return Ok(None);
    }
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    stream.read_exact(&mut bytes[got..])?;
    let size = Header::of(&bytes).size as usize;
    if !(HEADER..=MAX_MESSAGE).contains(&size) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.resize(size, 0);
    stream.read_exact(&mut bytes[HEADER..])?;
    Ok(Some(Message { bytes, files }))
}

fn send(mut stream: &UnixStream, message: &Message) -> io::Result<()> {
    let files: Vec<BorrowedFd<'_>> = message.files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let parts = [IoSlice::new(&message.bytes)];
    let sent = sendmsg(stream.as_fd(), &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&message.bytes[sent..])
}

#[cfg(test)]
mod tests;

//! Sends questions to QEMU over QEMU's own vfio-user socket. `vfio_user` only serves
//! requests and cannot send any. So the proxy accepts QEMU's connection, forwards QEMU's
//! requests and their files to `vfio_user`, and keeps QEMU's answers to our questions.

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
/// Limit of a message's size. Most of a large message is data, and QEMU announces at most
/// this much at once.
const MAX_MESSAGE: usize = 2 << 20;
/// Limit of files that come with one message.
const MAX_FILES: usize = 16;
/// Commands of the protocol.
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
/// In the flags: the mask of the type, the type of a reply, and the error bit.
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;
/// Offset of the data in both commands: after the address (8) and the count (8), as the
/// protocol specifies. The first QEMU with these messages used a count of 4 bytes.
const DMA_DATA: usize = HEADER + 16;

/// EIO: QEMU has disconnected.
const GONE: u32 = 5;

/// The access that QEMU performs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read this many bytes.
    Read(usize),
    /// Write these bytes.
    Write(Vec<u8>),
}

/// A question to QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address, as the device uses it.
    pub address: u64,
    /// The access.
    pub access: Access,
}

/// The bytes read, no bytes for a write, or the error number.
pub type Answer = Result<Vec<u8>, u32>;

/// The receiver of each message's answer, by message ID.
type Waiting = Arc<Mutex<HashMap<u16, Sender<Answer>>>>;

/// Sends questions to QEMU.
pub struct Client {
    to_qemu: Arc<Mutex<Option<UnixStream>>>,
    waiting: Waiting,
    next: Mutex<u16>,
}

/// QEMU's socket, and the socket of `vfio_user` behind it.
pub struct Proxy {
    listener: UnixListener,
    inner: SocketAddr,
    client: Arc<Client>,
}

impl Proxy {
    /// Listens at `socket`. Also returns the listener for `vfio_user`.
    pub fn new(socket: &Path) -> Result<(Self, OwnedFd)> {
        // An abstract name has no file.
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

    /// The client, which works once QEMU has connected.
    pub fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }

    /// Waits for QEMU, then forwards messages between QEMU and `vfio_user` until one of them
    /// disconnects.
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
        // Disconnect the other end, and wake every thread that waits for an answer.
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
    /// Sends a question and waits for the answer. The caller must hold no lock that the handler
    /// of a QEMU request takes.
    ///
    /// QEMU does not wait until a write arrives in another process. So a read follows each
    /// write: as on PCI, the read completes after the write before it.
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

    /// Delivers the message if it answers a question, and returns whether it does.
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
            // The receiver is gone if the process is about to end.
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

/// The next message, or none if the other end has disconnected.
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

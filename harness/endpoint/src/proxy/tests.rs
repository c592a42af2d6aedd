use std::time::Duration;

use super::*;

/// A proxy with its own socket, and both of its ends.
struct Fixture {
    _dir: tempfile::TempDir,
    qemu: UnixStream,
    server: UnixStream,
    client: Arc<Client>,
    proxy: thread::JoinHandle<io::Result<()>>,
}

fn fixture() -> Fixture {
    // The abstract socket name contains the process ID, so only one proxy can exist at a time.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nic.sock");
    let (proxy, behind) = Proxy::new(&path).unwrap();
    let client = proxy.client();
    let proxy = thread::spawn(move || proxy.run());
    let qemu = UnixStream::connect(&path).unwrap();
    // A missing message fails the test instead of hanging it.
    qemu.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let (server, _) = UnixListener::from(behind).accept().unwrap();
    Fixture {
        _dir: dir,
        qemu,
        server,
        client,
        proxy,
    }
}

fn raw(id: u16, command: u16, flags: u32, error: u32, body: &[u8]) -> Message {
    let mut bytes = Vec::new();
    bytes.extend(id.to_ne_bytes());
    bytes.extend(command.to_ne_bytes());
    bytes.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(error.to_ne_bytes());
    bytes.extend(body);
    Message {
        bytes,
        files: Vec::new(),
    }
}

#[test]
fn what_qemu_says_is_passed_on_and_what_it_answers_is_not() {
    let f = fixture();
    // A request with a file, and the server's answer to it.
    let file = tempfile::tempfile().unwrap();
    let mut request = raw(1, 2, 0, 0, &[7; 32]);
    request.files.push(file.into());
    send(&f.qemu, &request).unwrap();
    let seen = receive(&f.server).unwrap().unwrap();
    assert_eq!(seen.bytes, request.bytes);
    assert_eq!(seen.files.len(), 1);
    send(&f.server, &raw(1, 2, REPLY, 0, &[])).unwrap();
    assert_eq!(receive(&f.qemu).unwrap().unwrap().bytes[8], 1);

    // A question that QEMU answers while it also sends a request.
    let client = Arc::clone(&f.client);
    let asks = thread::spawn(move || {
        let read = client.ask(&Question {
            address: 0x1234_5678,
            access: Access::Read(3),
        });
        let [one, other] = [0, 1].map(|_| {
            client.ask(&Question {
                address: 0xffff_ffff_f000,
                access: Access::Write(vec![9; 8]),
            })
        });
        (read, one, other)
    });
    let question = receive(&f.qemu).unwrap().unwrap();
    let header = Header::of(&question.bytes);
    assert_eq!((header.command, header.flags), (DMA_READ, 0));
    assert_eq!(question.bytes[16..20], 0x1234_5678u32.to_ne_bytes());
    send(&f.qemu, &raw(2, 9, 0, 0, &[1])).unwrap();
    assert_eq!(receive(&f.server).unwrap().unwrap().bytes[16..], [1]);
    let mut body = vec![0; 16];
    body.extend([4, 5, 6]);
    send(&f.qemu, &raw(header.id, DMA_READ, REPLY, 0, &body)).unwrap();
    let question = receive(&f.qemu).unwrap().unwrap();
    assert_eq!(question.bytes[32..40], [9; 8]);
    let id = Header::of(&question.bytes).id;
    send(&f.qemu, &raw(id, DMA_WRITE, REPLY | ERROR, 14, &[])).unwrap();
    // A write has arrived once a read from the same address returns.
    let question = receive(&f.qemu).unwrap().unwrap();
    let id = Header::of(&question.bytes).id;
    send(&f.qemu, &raw(id, DMA_WRITE, REPLY, 0, &[0; 16])).unwrap();
    let question = receive(&f.qemu).unwrap().unwrap();
    let header = Header::of(&question.bytes);
    assert_eq!(header.command, DMA_READ);
    assert_eq!(question.bytes[16..24], 0xffff_ffff_f000u64.to_ne_bytes());
    assert!(!asks.is_finished());
    send(&f.qemu, &raw(header.id, DMA_READ, REPLY, 0, &[0; 17])).unwrap();
    let (read, one, other) = asks.join().unwrap();
    assert_eq!(read, Ok(vec![4, 5, 6]));
    assert_eq!((one, other), (Err(14), Ok(Vec::new())));

    // When QEMU disconnects, a thread that waits for its answer returns too.
    let client = Arc::clone(&f.client);
    let asks = thread::spawn(move || {
        client.ask(&Question {
            address: 0,
            access: Access::Read(1),
        })
    });
    receive(&f.qemu).unwrap().unwrap();
    drop(f.qemu);
    assert_eq!(asks.join().unwrap(), Err(GONE));
    f.proxy.join().unwrap().unwrap();
    assert!(receive(&f.server).unwrap().is_none());
}

#[test]
fn a_size_that_cannot_be_is_refused() {
    let (a, b) = UnixStream::pair().unwrap();
    let mut bad = raw(0, 1, 0, 0, &[]);
    bad.bytes[4] = 3;
    send(&a, &bad).unwrap();
    assert!(receive(&b).is_err());
    drop(a);
    assert!(receive(&b).unwrap().is_none());
}

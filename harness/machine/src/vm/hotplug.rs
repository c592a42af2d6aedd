//! Unplugs and plugs devices while the machine runs, and lets ports report errors. A program in the
//! guest asks for it, by the judge's port: `{"op":"unplug","device":"gpu0"}`. This file asks QEMU's
//! monitor (QMP). It presses the attention button of the slot; the guest's driver for slots does the
//! rest.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use plan::topology::Device;
use serde::Deserialize;
use serde_json::{Value, json};

use super::socket::at;

/// The monitor's socket in the machine's directory.
pub const SOCKET: &str = "qmp.sock";

/// How long the guest may take to let a device go. It waits 5 s for the button to be pressed again,
/// and then for its driver.
const LIMIT: Duration = Duration::from_secs(120);

/// Unplugs and plugs devices of one machine.
pub struct Hotplug {
    dir: PathBuf,
    devices: BTreeMap<String, Device>,
    ports: BTreeMap<String, String>,
    limit: Duration,
}

/// A guest's request.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    /// Let the device go.
    Unplug { device: String },
    /// Put it back.
    Plug { device: String },
    /// Let the port above it report an error (AER), by QEMU's name for it.
    Error { device: String, error: String },
}

impl Hotplug {
    /// `devices`: by name. `ports`: what is above each device, also above those that stay.
    pub fn new(
        dir: PathBuf,
        devices: BTreeMap<String, Device>,
        ports: BTreeMap<String, String>,
    ) -> Self {
        Self {
            dir,
            devices,
            ports,
            limit: LIMIT,
        }
    }

    /// Answers a request, `ok` or `fail <why>`. `None` if it is one for the judge.
    pub fn answer(&self, line: &str) -> Option<String> {
        let request = serde_json::from_str(line).ok()?;
        Some(match self.serve(&request) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("fail {}", format!("{error:#}").replace('\n', " ")),
        })
    }

    fn serve(&self, request: &Request) -> Result<()> {
        match request {
            Request::Unplug { device: name } => {
                self.device(name)?;
                let mut monitor = Monitor::connect(self)?;
                monitor.execute("device_del", json!({ "id": name }))?;
                monitor.wait(name)
            }
            Request::Plug { device: name } => {
                let Device { object, device } = self.device(name)?;
                let mut monitor = Monitor::connect(self)?;
                // As on QEMU's command line. QMP's commands want a type for each value.
                if let Some(object) = object {
                    // QEMU 10 and 11 abort if ivshmem gets memory that ivshmem had before, because
                    // it gives the memory's name back only while the guest has mapped it.
                    let id = value(object, "id").context("the memory has no name")?;
                    monitor.people(&format!("object_del {id}"), "")?;
                    monitor.forget(id)?;
                    monitor.people(&format!("object_add {object}"), "")?;
                }
                monitor.people(&format!("device_add {device}"), "")
            }
            Request::Error { device, error } => {
                let port = self.ports.get(device);
                let port = port.with_context(|| format!("there is no port above {device}"))?;
                let mut monitor = Monitor::connect(self)?;
                monitor.people(&format!("pcie_aer_inject_error {port} {error}"), "OK")
            }
        }
    }

    fn device(&self, name: &str) -> Result<&Device> {
        let device = self.devices.get(name);
        device.with_context(|| format!("there is no device {name} that can be unplugged"))
    }
}

/// The value of a property in one of QEMU's arguments.
fn value<'a>(argument: &'a str, property: &str) -> Option<&'a str> {
    let words = argument.split(',').filter_map(|word| word.split_once('='));
    words
        .into_iter()
        .find_map(|(name, value)| (name == property).then_some(value))
}

/// A connection to QEMU's monitor.
struct Monitor {
    to: UnixStream,
    from: BufReader<UnixStream>,
    end: Instant,
    /// The devices that have gone since it was opened.
    gone: Vec<String>,
}

impl Monitor {
    fn connect(hotplug: &Hotplug) -> Result<Self> {
        let to = at(&hotplug.dir, SOCKET, |path| UnixStream::connect(path));
        let to = to.context("QEMU's monitor")?;
        let mut monitor = Self {
            from: BufReader::new(to.try_clone()?),
            to,
            end: Instant::now() + hotplug.limit,
            gone: Vec::new(),
        };
        monitor.read()?;
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Executes a command and returns its result.
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.to, "{request}")?;
        loop {
            let mut said = self.read()?;
            if let Some(error) = said.get("error") {
                bail!("{command}: {}", error["desc"].as_str().unwrap_or("error"));
            }
            if let Some(result) = said.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// Executes a command for people, and returns what it says.
    fn ask(&mut self, line: &str) -> Result<String> {
        let line = json!({ "command-line": line });
        let said = self.execute("human-monitor-command", line)?;
        Ok(said.as_str().context("QEMU: no answer")?.trim().to_owned())
    }

    /// Executes a command for people. If it went well, it says `well` and perhaps more.
    fn people(&mut self, line: &str, well: &str) -> Result<()> {
        let said = self.ask(line)?;
        if said.starts_with(well) && said.is_empty() == well.is_empty() {
            return Ok(());
        }
        bail!("QEMU: {said}")
    }

    /// Waits until memory that was deleted has gone. QEMU's view of the address space still has
    /// it until a thread has seen that nobody uses that view any more (RCU).
    fn forget(&mut self, memory: &str) -> Result<()> {
        let name = format!("/{memory}");
        loop {
            let blocks = self.ask("info ramblock")?;
            let mut names = blocks
                .lines()
                .filter_map(|line| line.split_whitespace().next());
            if !names.any(|block| block.ends_with(&name)) {
                return Ok(());
            }
            if Instant::now() >= self.end {
                bail!("QEMU still has the memory {memory}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a device has gone.
    fn wait(&mut self, device: &str) -> Result<()> {
        while !self.gone.iter().any(|gone| gone == device) {
            self.read()
                .with_context(|| format!("the guest has not let {device} go"))?;
        }
        Ok(())
    }

    /// Reads a line. An event of a device that has gone is kept.
    fn read(&mut self) -> Result<Value> {
        let left = self.end.saturating_duration_since(Instant::now());
        // No time at all would mean no limit.
        let left = left.max(Duration::from_millis(1));
        self.from.get_ref().set_read_timeout(Some(left))?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("QEMU has ended");
        }
        let said: Value = serde_json::from_str(&line)?;
        if said["event"] == "DEVICE_DELETED"
            && let Some(device) = said["data"]["device"].as_str()
        {
            self.gone.push(device.to_owned());
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Plays QEMU for one connection: says the first lines, and the others after a request each.
    /// Returns the requests.
    fn qemu(dir: &std::path::Path, says: &[&str]) -> thread::JoinHandle<String> {
        let listener = UnixListener::bind(dir.join(SOCKET)).unwrap();
        let says = Vec::from_iter(says.iter().map(|lines| (*lines).to_owned()));
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            let mut asked = String::new();
            for (turn, lines) in says.iter().enumerate() {
                if turn > 0 && requests.read_line(&mut asked).unwrap() == 0 {
                    break;
                }
                writeln!(stream, "{lines}").unwrap();
            }
            // Until the connection ends.
            let _ = requests.read_line(&mut asked);
            asked
        })
    }

    fn hotplug(dir: &std::path::Path) -> Hotplug {
        let gpu = Device {
            object: Some("memory-backend-file,id=vram0".to_owned()),
            device: "ivshmem-plain,id=gpu0,bus=dp0".to_owned(),
        };
        let devices = BTreeMap::from([("gpu0".to_owned(), gpu)]);
        let ports = [("gpu0", "dp0"), ("nic0", "dp1")];
        let ports = ports.map(|(device, port)| (device.to_owned(), port.to_owned()));
        Hotplug {
            limit: Duration::from_millis(500),
            ..Hotplug::new(dir.to_owned(), devices, BTreeMap::from(ports))
        }
    }

    fn ask(question: &str, says: &[&str]) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        let qemu = qemu(dir.path(), says);
        let answer = hotplug(dir.path()).answer(question).unwrap();
        // Nobody may have come: the thread must not wait forever.
        let _ = UnixStream::connect(dir.path().join(SOCKET));
        (answer, qemu.join().unwrap())
    }

    const HELLO: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
    const DONE: &str = r#"{"return": {}}"#;
    const UNPLUG: &str = r#"{"op":"unplug","device":"gpu0"}"#;
    const PLUG: &str = r#"{"op":"plug","device":"gpu0"}"#;
    const OTHER: &str =
        r#"{"event": "DEVICE_DELETED", "data": {"device": "nic0", "path": "/machine"}}"#;

    #[test]
    fn a_device_is_unplugged_when_it_has_gone() {
        // QEMU has two such events, one for the bus of the device, without a name.
        let gone = "{\"return\": {}}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\n\
                    {\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"gpu0\"}}";
        let (answer, asked) = ask(UNPLUG, &[HELLO, DONE, gone]);
        assert_eq!(answer, "ok");
        let asked = Vec::from_iter(asked.lines().map(|l| serde_json::from_str(l).unwrap()));
        let wanted = json!({ "execute": "device_del", "arguments": { "id": "gpu0" } });
        assert_eq!((asked.len(), &asked[1]), (2, &wanted));
    }

    #[test]
    fn an_event_may_come_before_the_result() {
        let gone =
            "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"gpu0\"}}\n{\"return\": {}}";
        assert_eq!(ask(UNPLUG, &[HELLO, DONE, gone]).0, "ok");
    }

    #[test]
    fn a_guest_that_keeps_a_device_is_told() {
        for last in [DONE.to_owned(), format!("{DONE}\n{OTHER}")] {
            let answer = ask(UNPLUG, &[HELLO, DONE, &last]).0;
            assert!(
                answer.starts_with("fail the guest has not let gpu0 go"),
                "{answer}"
            );
        }
    }

    #[test]
    fn what_qemu_refuses_is_told() {
        let error = r#"{"error": {"class": "GenericError", "desc": "in the process"}}"#;
        let answer = ask(UNPLUG, &[HELLO, DONE, error]).0;
        assert_eq!(answer, "fail device_del: in the process");
        let said = r#"{"return": "Error: Duplicate device ID 'gpu0'\r\n"}"#;
        let answer = ask(PLUG, &[HELLO, DONE, said]).0;
        assert_eq!(answer, "fail QEMU: Error: Duplicate device ID 'gpu0'");
    }

    /// As QEMU lists memory. The first one has the name of the GPU's memory behind its device.
    const BLOCKS: &str =
        r#"{"return": "Block Name    PSize\r\n 0000:00:0a.0/vram0  4 KiB\r\n pc.ram  4 KiB\r\n"}"#;

    #[test]
    fn a_device_is_plugged_as_it_was() {
        let done = r#"{"return": ""}"#;
        let none = BLOCKS.replace("vram0", "vram00");
        // The memory may stay for a while.
        let says = [HELLO, DONE, done, BLOCKS, &none, done, done];
        let (answer, asked) = ask(PLUG, &says);
        assert_eq!(answer, "ok");
        let asked = asked.lines().skip(1).map(|line| {
            let said: Value = serde_json::from_str(line).unwrap();
            said["arguments"]["command-line"]
                .as_str()
                .unwrap()
                .to_owned()
        });
        let wanted = [
            "object_del vram0",
            "info ramblock",
            "info ramblock",
            "object_add memory-backend-file,id=vram0",
            "device_add ivshmem-plain,id=gpu0,bus=dp0",
        ];
        assert_eq!(Vec::from_iter(asked), wanted);
    }

    #[test]
    fn memory_that_stays_is_told() {
        let done = r#"{"return": ""}"#;
        let says = Vec::from_iter([HELLO, DONE, done].into_iter().chain([BLOCKS; 100]));
        let (answer, _) = ask(PLUG, &says);
        assert_eq!(answer, "fail QEMU still has the memory vram0");
    }

    #[test]
    fn the_port_above_a_device_reports_an_error() {
        let request = r#"{"op":"error","device":"gpu0","error":"MALF_TLP"}"#;
        let says = r#"{"return": "OK id: dp0 root bus: 0000:00, bus: 3 devfn: 0.0\r\n"}"#;
        let (answer, asked) = ask(request, &[HELLO, DONE, says]);
        assert_eq!(answer, "ok");
        assert!(
            asked.contains("\"pcie_aer_inject_error dp0 MALF_TLP\""),
            "{asked}"
        );
        // The model of a NIC is no device that can be unplugged.
        let of_nic = r#"{"op":"error","device":"nic0","error":"MALF_TLP"}"#;
        let (answer, asked) = ask(of_nic, &[HELLO, DONE, says]);
        assert_eq!(answer, "ok");
        assert!(asked.contains("pcie_aer_inject_error dp1 "), "{asked}");
        for says in [
            r#"{"return": "Error: invalid error status"}"#,
            r#"{"return": ""}"#,
        ] {
            let answer = ask(request, &[HELLO, DONE, says]).0;
            assert!(answer.starts_with("fail QEMU: "), "{answer}");
        }
    }

    #[test]
    fn other_requests_are_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let hotplug = hotplug(dir.path());
        assert_eq!(hotplug.answer(r#"{"op":"snapshot","gpu":0}"#), None);
        assert_eq!(hotplug.answer("nonsense"), None);
        let answer = hotplug.answer(r#"{"op":"plug","device":"gpu1"}"#).unwrap();
        assert!(
            answer.starts_with("fail there is no device gpu1"),
            "{answer}"
        );
        let answer = hotplug.answer(r#"{"op":"plug","device":"nic0"}"#).unwrap();
        assert!(
            answer.starts_with("fail there is no device nic0"),
            "{answer}"
        );
        let error = r#"{"op":"error","device":"nic1","error":"MALF_TLP"}"#;
        assert_eq!(
            hotplug.answer(error).unwrap(),
            "fail there is no port above nic1"
        );
        let answer = hotplug.answer(PLUG).unwrap();
        assert!(answer.starts_with("fail QEMU's monitor: "), "{answer}");
    }
}

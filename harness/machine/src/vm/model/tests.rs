use super::*;

const PLAIN: Requests = Requests {
    ats: false,
    relaxed_at_peer: false,
    peers: Vec::new(),
};

/// A fake model, which is a script, in a machine's folder.
struct Machine {
    paths: Paths,
    dir: PathBuf,
    _scratch: tempfile::TempDir,
}

impl Machine {
    fn new(script: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().to_owned();
        let paths = Paths::within(&root);
        let program = program(&paths, Device::ConnectX);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, format!("#!/bin/sh\n: >connectx0.log\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
        fs::copy(&program, super::program(&paths, Device::Pascal)).unwrap();
        let dir = root.join("build/run");
        fs::create_dir_all(&dir).unwrap();
        Self {
            paths,
            dir,
            _scratch: scratch,
        }
    }

    fn start(&self) -> Result<Model> {
        let connectx = ["--seed".to_owned(), "7".to_owned()];
        self.start_with(
            Device::ConnectX,
            Models {
                connectx: &connectx,
                ..Models::default()
            },
        )
    }

    fn start_with(&self, device: Device, models: Models<'_>) -> Result<Model> {
        self.start_together(device, models, 0..1)
    }

    fn start_together(
        &self,
        device: Device,
        models: Models<'_>,
        numbers: Range<usize>,
    ) -> Result<Model> {
        let setting = Setting {
            paths: &self.paths,
            dir: &self.dir,
            gpus: 2,
            models,
            limit: Some(Duration::from_secs(20)),
        };
        Model::start(&setting, device, numbers)
    }
}

#[test]
fn a_model_that_has_nothing_to_complain_of() {
    let machine = Machine::new("echo \"$*\" >arguments; : >connectx0.sock");
    let nic = machine.start().unwrap();
    assert_eq!(end(vec![nic], &PLAIN).unwrap(), None);
    let arguments = fs::read_to_string(machine.dir.join("arguments")).unwrap();
    let headers = machine.paths.tree().join("include/linux/mlx5");
    let headers = headers.display();
    assert_eq!(
        arguments,
        format!(
            "--socket connectx0.sock --log connectx0.log --headers {headers} \
             --peer=vram0 --peer=vram1 --seed 7\n"
        )
    );
}

#[test]
fn a_gpu_and_the_nic_that_reaches_it() {
    let machine = Machine::new("echo \"$*\" >arguments; : >connectx0.sock; : >pascal0.sock");
    let pascal = ["--bar1=16M".to_owned()];
    let models = Models {
        pascal: Some(&pascal),
        ..Models::default()
    };
    let arguments = |device| {
        let model = machine.start_with(device, models).unwrap();
        assert_eq!(end(vec![model], &PLAIN).unwrap(), None);
        fs::read_to_string(machine.dir.join("arguments")).unwrap()
    };
    let nic = arguments(Device::ConnectX);
    assert!(nic.contains("--bus") && !nic.contains("--peer"), "{nic}");
    assert_eq!(
        arguments(Device::Pascal),
        "--socket pascal0.sock --log pascal0.log --vram-file=vram0 --bar1=16M\n"
    );
}

/// Each has a log of its own, in which it can break a rule.
#[test]
fn two_nics_that_a_wire_joins_are_one_process() {
    for at in [0, 1] {
        let dma = r#"{"event":"dma","to":"ram","len":8,"ats":true,"ro":false}"#;
        let machine = Machine::new(&format!(
            "echo \"$*\" >arguments; : >connectx1.log; echo '{dma}' >connectx{at}.log; \
             : >connectx0.sock; sleep 0.2; : >connectx1.sock"
        ));
        let models = Models::default();
        let model = machine.start_together(Device::ConnectX, models, 0..2);
        let model = model.unwrap();
        // Both listen.
        assert!(machine.dir.join("connectx1.sock").exists());
        let complaint = end(vec![model], &PLAIN).unwrap().unwrap();
        let what = format!("connectx{at}: 1 DMAs with ATS");
        assert!(complaint.starts_with(&what), "{complaint}");
        let arguments = fs::read_to_string(machine.dir.join("arguments")).unwrap();
        let both = "--socket connectx0.sock --log connectx0.log \
                    --socket connectx1.sock --log connectx1.log --headers";
        assert!(arguments.starts_with(both), "{arguments}");
    }
}

#[test]
fn a_rule_that_is_broken_is_told() {
    let machine = Machine::new(": >connectx0.sock; echo 'DMA after unmap' >&2; exit 1");
    let complaint = end(vec![machine.start().unwrap()], &PLAIN)
        .unwrap()
        .unwrap();
    assert!(complaint.starts_with("connectx0: a rule is broken\n"));
    assert!(complaint.contains("DMA after unmap"), "{complaint}");
}

#[test]
fn a_request_that_the_topology_excludes_is_told() {
    let dma = r#"{"event":"dma","to":"ram","len":8,"ats":true,"ro":false}"#;
    let machine = Machine::new(&format!("echo '{dma}' >connectx0.log; : >connectx0.sock"));
    let complaint = end(vec![machine.start().unwrap()], &PLAIN)
        .unwrap()
        .unwrap();
    assert!(complaint.contains("1 DMAs with ATS"), "{complaint}");
    let may = Requests { ats: true, ..PLAIN };
    assert_eq!(end(vec![machine.start().unwrap()], &may).unwrap(), None);
}

#[test]
fn a_model_that_fails_is_told_with_its_log() {
    let machine = Machine::new("echo 'the last' >connectx0.log; : >connectx0.sock; exit 101");
    let complaint = end(vec![machine.start().unwrap()], &PLAIN)
        .unwrap()
        .unwrap();
    assert!(complaint.contains("exit status: 101"), "{complaint}");
    assert!(complaint.contains("the last"), "{complaint}");
}

#[test]
fn a_model_that_does_not_start() {
    let machine = Machine::new("echo 'no such headers' >&2; exit 2");
    let error = machine.start().err().unwrap().to_string();
    assert!(error.contains("exit status: 2"), "{error}");
    assert!(error.contains("no such headers"), "{error}");
    fs::remove_file(program(&machine.paths, Device::ConnectX)).unwrap();
    let error = machine.start().err().unwrap().to_string();
    assert!(error.contains("harness/setup.sh"), "{error}");
}

#[test]
fn a_model_that_refuses_the_machine_says_why() {
    let machine = Machine::new(": >connectx0.sock; echo 'RAM is not shared' >&2; exit 3");
    let complaint = end(vec![machine.start().unwrap()], &PLAIN)
        .unwrap()
        .unwrap();
    assert!(complaint.contains("exit status: 3"), "{complaint}");
    assert!(complaint.contains("RAM is not shared"), "{complaint}");
}

#[test]
fn a_model_that_does_not_end_is_ended() {
    let machine = Machine::new("echo $$ >pid; : >connectx0.sock; trap '' TERM; sleep 1000");
    let nic = machine.start().unwrap();
    let complaint = nic.end(Duration::from_millis(100)).unwrap().unwrap();
    assert!(complaint.contains("did not end"), "{complaint}");
    let pid = fs::read_to_string(machine.dir.join("pid")).unwrap();
    assert!(host::proc::ends(&pid));
}

#[test]
fn a_model_whose_machine_does_not_boot_is_ended() {
    let machine = Machine::new("echo $$ >pid; : >connectx0.sock; sleep 1000");
    drop(machine.start().unwrap());
    let pid = fs::read_to_string(machine.dir.join("pid")).unwrap();
    assert!(host::proc::ends(&pid));
}

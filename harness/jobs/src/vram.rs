//! What the test GPU's memory must look like when the job has ended.

use judge::neither_free_nor_new;
use machine::vm::RunResult;
use plan::job::Spec;
use plan::topology::{Topology, vram};
use results::report::Outcome;

/// Whether each page is poison, as the test GPU leaves a page that is freed, or zeros. Other
/// content was not freed, or came after the page was freed. Not noticed is a page of zeros that
/// is in use. Memory of other GPUs, and of a machine that did not end well, is not looked at.
pub fn outcome(job: &str, spec: &Spec, topology: &Topology, ran: &RunResult) -> Option<Outcome> {
    let gpus = topology.gpus.len();
    if gpus == 0 || spec.vram_lost || spec.pascal.is_some() || ran.trouble().is_some() {
        return None;
    }
    let troubles = (0..gpus).filter_map(|number| {
        let name = vram(number);
        match neither_free_nor_new(&ran.dir.join(&name)) {
            Ok(pages) => pages.first().map(|first| {
                format!(
                    "{name}: {} pages were written after they were freed, or not freed; the first \
                     is at {first:#x}",
                    pages.len()
                )
            }),
            Err(error) => Some(error),
        }
    });
    let troubles = Vec::from_iter(troubles);
    let trouble = (!troubles.is_empty()).then(|| troubles.join("\n"));
    let name = "the GPU's memory is as the driver left it";
    Some(Outcome::unless(job, name, trouble))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::path::Path;

    use ktap::Status;
    use plan::topology::Topologies;

    #[test]
    fn memory_that_is_in_use_or_was_written_late() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let ran = RunResult::quiet(dir.path());
        let told = |more: &str, topology: &str| {
            let text = format!("name='x'\ntopologies=['switch']\nlimit=1\n{more}");
            let spec: Spec = toml::from_str(&text).unwrap();
            outcome("x", &spec, topologies.get(topology).unwrap(), &ran)
        };
        let reason = |topology| told("", topology).unwrap().reason;
        assert!(reason("switch").contains("vram0"), "no file");
        for number in 0..2 {
            fs::write(ran.dir.join(vram(number)), [0x5a; 4096]).unwrap();
        }
        assert_eq!(told("", "two-gpus").unwrap().status, Status::Passed);
        fs::write(ran.dir.join(vram(1)), [0x5b; 8192]).unwrap();
        assert_eq!(told("", "switch").unwrap().status, Status::Passed);
        assert_eq!(
            reason("two-gpus"),
            "vram1: 2 pages were written after they were freed, or not freed; the first is at 0x0"
        );
        assert!(told("vram_lost=true", "two-gpus").is_none());
        for pascal in ["", "'--no-copy-engine'"] {
            let more = format!("machine='parallel'\npascal=[{pascal}]");
            assert!(told(&more, "two-gpus").is_none());
        }
    }
}

//! The job's requirements on the NIC, besides its rules: it was used where that is the
//! purpose, and its model was fast and small.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use machine::vm::RunResult;
use machine::witness::{BUS, Figures, figures, unused};
use plan::job::{Bounds, Spec};
use plan::topology::{Topology, connectx, pascal, vram};
use results::report::Outcome;

/// Results from the logs of the NICs. The bounds are for the first one.
pub fn outcomes(job: &str, spec: &Spec, topology: &Topology, ran: &RunResult) -> Vec<Outcome> {
    let log = |number| ran.dir.join(format!("{}.log", connectx(number)));
    let mut outcomes = Vec::new();
    let places = places(spec, topology);
    if spec.at_peer && !places.is_empty() {
        let nics = if topology.wire { 2 } else { 1 };
        let troubles = (0..nics).filter_map(|number| {
            let log = log(number);
            match named(&log, unused(&log, &places)) {
                Ok(unused) if unused.is_empty() => None,
                Ok(unused) => Some(format!("{}: {}", connectx(number), unused.join("\n"))),
                Err(error) => Some(error),
            }
        });
        let troubles = Vec::from_iter(troubles);
        let trouble = (!troubles.is_empty()).then(|| troubles.join("\n"));
        let what = match nics {
            1 => "the NIC reads and writes memory of the GPU",
            _ => "each NIC reads and writes memory of the GPU",
        };
        outcomes.push(Outcome::unless(job, what, trouble));
    }
    // A log that was cut off may lack a request that is forbidden. So each must have its end.
    let figures = (0..topology.nics.len()).map(|number| {
        let log = log(number);
        named(&log, figures(&log))
    });
    let figures: Result<Vec<_>, _> = figures.collect();
    let first = figures.iter().flatten().next();
    let trouble = figures.as_ref().err().cloned();
    let trouble = trouble.or_else(|| broken(*spec.bounds.get(&topology.name)?, first?));
    let mut outcome = Outcome::unless(job, "latency and memory of the NIC's model", trouble);
    outcome.log.extend(first.map(ToString::to_string));
    outcomes.push(outcome);
    if spec.pascal.is_some() {
        let gpus = (0..topology.gpus.len()).map(|number| {
            let log = ran.dir.join(format!("{}.log", pascal(number)));
            named(&log, bar1_bytes(&log))
        });
        let trouble = match (figures, gpus.sum()) {
            (Ok(nics), Ok(bar1)) => elsewhere(nics.iter().map(|nic| nic.bus_bytes).sum(), bar1),
            (Err(error), _) | (_, Err(error)) => Some(error),
        };
        let what = "what QEMU moves for NICs goes through BAR1 of GPUs";
        outcomes.push(Outcome::unless(job, what, trouble));
    }
    outcomes
}

fn named<T>(log: &Path, read: Result<T>) -> Result<T, String> {
    let named = read.with_context(|| log.display().to_string());
    named.map_err(|error| format!("{error:#}"))
}

/// The log's names of the memory that the NIC may reach.
fn places(spec: &Spec, topology: &Topology) -> Vec<String> {
    let peers = topology.requests.peers.iter();
    let mut places = Vec::from_iter(peers.map(|number| match spec.pascal {
        Some(_) => BUS.to_owned(),
        None => vram(*number),
    }));
    places.dedup();
    places
}

/// Bytes of all accesses to a GPU model's BAR1.
fn bar1_bytes(log: &Path) -> Result<u64> {
    #[derive(Deserialize)]
    struct End {
        bar1_bytes: u64,
    }
    let text = fs::read_to_string(log)?;
    let last = text.lines().next_back().unwrap_or_default();
    let end: End = serde_json::from_str(last).context("it has no last line")?;
    Ok(end.bar1_bytes)
}

/// Why some bytes from NICs have not come to a GPU. The processor uses BAR1, too, so there
/// may be more than these.
fn elsewhere(bus: u64, bar1: u64) -> Option<String> {
    (bus > bar1).then(|| format!("QEMU moved {bus} bytes for NICs, and {bar1} went through BAR1"))
}

/// Why the bounds are exceeded.
fn broken(bounds: Bounds, figures: &Figures) -> Option<String> {
    let is_quick = figures.write_us.is_some_and(|us| us <= bounds.write_us);
    let is_small = figures
        .peak_kib
        .is_some_and(|kib| kib <= 1024 * bounds.memory_mib);
    (!is_quick || !is_small).then(|| {
        format!(
            "at most {} us and {} MiB are allowed",
            bounds.write_us, bounds.memory_mib
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use ktap::Status;

    use plan::topology::Topologies;

    const LOG: &str = r#"{"event":"dma","dir":"read","to":"vram0","len":8,"ats":false,"ro":false}
{"event":"dma","dir":"write","to":"vram0","len":8,"ats":false,"ro":false}
{"event":"done","qpn":1,"op":"rdma_write","len":4096,"took":200,"direct":true}
{"event":"end","ram_bytes":0,"peer_bytes":16,"peak_kib":65536}
"#;

    const GPU: &str = r#"{"event":"probe"}
{"event":"end","bar1_accesses":512,"bar1_bytes":4096}
"#;

    /// The number of outcomes, and the names and reasons of the failed ones.
    fn failed(spec: &str, topology: &str, log: Option<&str>) -> (usize, Vec<String>) {
        let logs = Vec::from_iter(log.map(|log| ("connectx0", log)));
        failed_with(spec, topology, &logs)
    }

    fn failed_with(spec: &str, topology: &str, logs: &[(&str, &str)]) -> (usize, Vec<String>) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let text = format!("name='x'\nmachine='parallel'\ntopologies=['switch']\nlimit=1\n{spec}");
        let spec: Spec = toml::from_str(&text).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (name, log) in logs {
            fs::write(dir.path().join(format!("{name}.log")), log).unwrap();
        }
        let ran = RunResult::quiet(dir.path());
        let all = outcomes("x", &spec, topologies.get(topology).unwrap(), &ran);
        let failed = all.iter().filter(|one| one.status == Status::Failed);
        let told = failed.map(|one| format!("{}: {} {:?}", one.name, one.reason, one.log));
        (all.len(), told.collect())
    }

    const BOUNDS: &str = "bounds={switch={write_us=200,memory_mib=64}}";

    #[test]
    fn a_model_that_is_slow_or_large_fails() {
        assert_eq!(failed("", "switch", Some(LOG)), (1, vec![]));
        assert_eq!(failed(BOUNDS, "switch", Some(LOG)), (1, vec![]));
        for (right, wrong) in [
            ("\"took\":200", "\"took\":201"),
            ("65536", "65537"),
            // This log measures no write.
            ("4096", "4095"),
            (",\"peak_kib\":65536", ""),
        ] {
            let log = LOG.replace(right, wrong);
            let (_, told) = failed(BOUNDS, "switch", Some(&log));
            assert!(told[0].contains("at most 200 us and 64 MiB"), "{told:?}");
            assert!(told[0].contains("memory of the model"), "{told:?}");
            // The bounds are for one topology.
            assert_eq!(failed(BOUNDS, "iommu", Some(&log)).1.len(), 0);
        }
    }

    #[test]
    fn a_job_that_is_about_the_gpu_must_have_used_it() {
        let at_peer = "at_peer=true";
        assert_eq!(failed(at_peer, "switch", Some(LOG)), (2, vec![]));
        let (_, told) = failed(at_peer, "switch", Some(&LOG.replace("vram0", "ram")));
        let told = told.join("\n");
        assert!(told.contains("has not read vram0") && told.contains("has not written vram0"));
        // One of the two GPUs can be reached.
        assert_eq!(failed(at_peer, "two-gpus", Some(LOG)), (2, vec![]));
        // If no GPU can be reached, there is no check.
        assert_eq!(failed(at_peer, "blocked", Some(LOG)).0, 1);
        // The GPU is a model, so its memory is a BAR.
        let (model, bus) = ("at_peer=true\npascal=[]", LOG.replace("vram0", "bus"));
        let judged = |log| failed_with(model, "switch", &[("connectx0", log), ("pascal0", GPU)]);
        assert_eq!(judged(&bus), (3, vec![]));
        assert_eq!(judged(LOG).1.len(), 1);
    }

    #[test]
    fn what_the_nic_moves_by_the_bus_goes_through_bar1() {
        let nic = LOG.replace("\"peer_bytes\":16", "\"peer_bytes\":0,\"bus_bytes\":4096");
        let failed = |topology: &str, gpus: &[&str]| {
            let names = ["pascal0", "pascal1"];
            let mut logs = Vec::from_iter(names.into_iter().zip(gpus.iter().copied()));
            logs.push(("connectx0", &nic));
            failed_with("pascal=[]", topology, &logs).1.join("\n")
        };
        let gpu = |bytes: u64| GPU.replace("4096", &bytes.to_string());
        // The processor may have used BAR1, too.
        for bytes in [4096, 4100] {
            assert_eq!(failed("switch", &[&gpu(bytes)]), "");
        }
        for bytes in [0, 4095] {
            let told = failed("switch", &[&gpu(bytes)]);
            let what = format!("QEMU moved 4096 bytes for NICs, and {bytes} went through BAR1");
            assert!(told.contains(&what), "{told}");
        }
        assert_eq!(failed("two-gpus", &[&gpu(4000), &gpu(96)]), "");
        assert!(failed("two-gpus", &[&gpu(4000), &gpu(95)]).contains("and 4095 went"));
        let cut = failed("switch", &[GPU.lines().next().unwrap()]);
        assert!(cut.contains("pascal0.log: it has no last line"), "{cut}");
        assert!(failed("switch", &[]).contains("pascal0.log"));
    }

    #[test]
    fn both_ends_of_a_wire_must_have_used_the_gpu() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let text = "name='x'\nmachine='parallel'\ntopologies=['wire']\nlimit=1\nat_peer=true";
        let spec: Spec = toml::from_str(text).unwrap();
        let failed = |topology: &str, second: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("connectx0.log"), LOG).unwrap();
            if let Some(log) = second {
                fs::write(dir.path().join("connectx1.log"), log).unwrap();
            }
            let ran = RunResult::quiet(dir.path());
            let all = outcomes("x", &spec, topologies.get(topology).unwrap(), &ran);
            let failed = all.iter().filter(|one| one.status == Status::Failed);
            Vec::from_iter(failed.map(|one| format!("{} {:?}", one.reason, one.log)))
        };
        assert!(failed("wire", Some(LOG)).is_empty());
        let told = failed("wire", Some(&LOG.replace("vram0", "ram"))).join("\n");
        assert!(
            told.contains("connectx1: ") && !told.contains("connectx0: "),
            "{told}"
        );
        assert!(told.contains("has not read vram0"), "{told}");
        assert!(failed("wire", None).join("\n").contains("connectx1.log"));
        // This log has both accesses, but not its end.
        let (cut, _) = LOG.split_once(r#"{"event":"end""#).unwrap();
        let told = failed("wire", Some(cut)).join("\n");
        assert!(
            told.contains("connectx1.log: it has no last line"),
            "{told}"
        );
        // This topology has one NIC.
        assert!(failed("switch", None).is_empty());
    }

    #[test]
    fn without_a_log_nothing_is_known() {
        let (all, told) = failed("at_peer=true", "switch", None);
        assert_eq!(all, told.len());
        assert!(told.iter().all(|told| told.contains("connectx0.log")));
    }
}

//! Compares what a command claims that the NIC has moved in GPU memory with the NIC's own
//! log. The guest cannot read that log in time, so it cannot make this comparison itself.

use std::fs;

use anyhow::{Context, Result};

use machine::vm::RunResult;
use machine::witness::conversations;
use plan::topology::connectx;
use results::report::Outcome;

/// The start of a claim in a report. The number of bytes follows, or the least and the most.
const CLAIM: &str = "# vram ";

/// The least and the most bytes of a claim.
fn range(claim: &str) -> Option<(u64, u64)> {
    let numbers = claim.split_whitespace().map(|number| number.parse().ok());
    match numbers.collect::<Option<Vec<_>>>()?[..] {
        [exact] => Some((exact, exact)),
        [least, most] => Some((least, most)),
        _ => None,
    }
}

/// Why the first NIC's log contradicts the report. Each test of the report is a
/// conversation and claims a number of bytes.
pub fn contradicted(outcomes: &[Outcome], ran: &RunResult) -> Option<String> {
    match compare(outcomes, ran) {
        Ok(wrong) if wrong.is_empty() => None,
        Ok(wrong) => Some(wrong.join("\n")),
        Err(error) => Some(format!("{error:#}")),
    }
}

fn compare(outcomes: &[Outcome], ran: &RunResult) -> Result<Vec<String>> {
    let file = ran.dir.join(format!("{}.log", connectx(0)));
    let log = fs::read_to_string(&file);
    let seen = log.map_err(Into::into).and_then(|log| conversations(&log));
    let seen = seen.with_context(|| file.display().to_string())?;
    if seen.len() != outcomes.len() {
        return Ok(vec![format!(
            "the NIC's log has {} conversations, for {} tests",
            seen.len(),
            outcomes.len()
        )]);
    }
    let mut wrong = Vec::new();
    for (outcome, seen) in outcomes.iter().zip(seen) {
        let claim = outcome.log.iter().find_map(|line| line.strip_prefix(CLAIM));
        let trouble = match claim.and_then(range) {
            Some((least, most)) => seen.contradicts(least, most),
            None => Some(format!("it has no line \"{CLAIM}BYTES\"")),
        };
        wrong.extend(trouble.map(|trouble| format!("{}: {trouble}", outcome.name)));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    use ktap::{Case, Status};

    fn outcome(line: &str) -> Outcome {
        let case = Case {
            name: "ib_write_bw".into(),
            status: Status::Passed,
            reason: String::new(),
            log: vec![line.to_owned()],
        };
        Outcome::from_ktap("perftest/switch", "perftest", case)
    }

    #[test]
    fn claims_are_those_of_the_log() {
        // 4096 bytes of VRAM in the first conversation, none in the second.
        let log = r#"{"event":"dma","to":"vram0","len":4096,"ats":false,"ro":false}
{"event":"command","name":"DESTROY_QP"}
{"event":"command","name":"DESTROY_QP"}
{"event":"dma","to":"ram","len":64,"ats":false,"ro":false}
{"event":"command","name":"DESTROY_QP"}
{"event":"end","ram_bytes":64,"peer_bytes":4096}
"#;
        let dir = tempfile::tempdir().unwrap();
        let ran = RunResult::quiet(dir.path());
        let told = |lines: &[&str]| {
            let outcomes = Vec::from_iter(lines.iter().map(|line| outcome(line)));
            contradicted(&outcomes, &ran)
        };
        let good = ["# vram 4096", "# vram 0"];
        assert!(told(&good).unwrap().contains("connectx0.log"));
        fs::write(dir.path().join("connectx0.log"), log).unwrap();
        assert_eq!(told(&good), None);
        let wrong = told(&["# vram 0", "# vram 1"]).unwrap();
        assert!(wrong.contains("claimed 0 bytes, but the NIC has moved 4096"));
        assert!(wrong.contains("claimed 1 bytes, but the NIC has moved 0"));
        assert!(wrong.starts_with("perftest: ib_write_bw: "), "{wrong}");
        assert_eq!(told(&["# vram 64 8192", "# vram 0"]), None);
        let wrong = told(&["# vram 64", "# vram 1 2"]).unwrap();
        assert!(wrong.contains("claimed 64 bytes, but the NIC has moved 4096"));
        assert!(wrong.contains("claimed 1 to 2 bytes, but the NIC has moved 0"));
        let wrong = told(&good[..1]).unwrap();
        assert_eq!(wrong, "the NIC's log has 2 conversations, for 1 tests");
        for none in [
            ["# vram", "ok"],
            ["# vram ", "# vram 1 x"],
            ["# vram 1 2 3", "# vram -1"],
        ] {
            let wrong = told(&none).unwrap();
            assert_eq!(wrong.matches("no line").count(), 2, "{wrong}");
        }
    }
}

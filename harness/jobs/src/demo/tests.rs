use super::*;

use std::path::Path;

fn scenario() -> Scenario {
    toml::from_str("name='resident'\npages=64\nkind='bus_addr'\npeer=64\nhome=0\n").unwrap()
}

fn played() -> Played {
    serde_json::from_str(
        r#"{"scenario":"resident","map_type":"bus_addr","translated":false,
        "pages":64,"peer_pages":64,
        "home_pages":0,"ram_pages":0,"migrations":0,"bytes":524288,"faults":1,"retries":0,
        "intact":true,"judged":true,"reasons":{"bus_addr":64},
        "expected":{"map_type":"bus_addr","peer_pages":64,"home_pages":0},"exit":0,"error":""}"#,
    )
    .unwrap()
}

#[test]
fn a_row_is_shown_as_in_the_table() {
    let row = ScenarioResult {
        topology: "switch".to_owned(),
        devices: "p2ptest + edu",
        scenario: "resident".to_owned(),
        played: Some(played()),
        trouble: None,
        log: PathBuf::new(),
    };
    let shown = row.shown().unwrap();
    let cells = [
        &shown.map_type,
        &shown.peer,
        &shown.bytes,
        &shown.intact,
        &shown.why,
    ];
    assert_eq!(cells, ["BUS_ADDR", "64", "524288", "yes", "-"]);
    let table = table(std::slice::from_ref(&row));
    assert!(cells.iter().all(|cell| table.contains(&***cell)), "{table}");
    let none = ScenarioResult {
        played: None,
        ..row
    };
    assert!(none.shown().is_none());
}

#[test]
fn what_is_expected_is_no_trouble() {
    assert_eq!(mismatch(&scenario(), false, 1, &played()), None);
}

#[test]
fn a_page_that_moved_meanwhile_takes_a_fault_more() {
    let mut played = played();
    played.faults += 1;
    assert!(mismatch(&scenario(), false, 1, &played).is_some());
    played.retries += 1;
    assert_eq!(mismatch(&scenario(), false, 1, &played), None);
}

#[test]
fn each_difference_is_trouble() {
    let changes: [fn(&mut Played); 10] = [
        |played| played.map_type = "host".into(),
        |played| played.translated = true,
        |played| played.peer_pages -= 1,
        |played| played.home_pages += 1,
        |played| played.migrations += 1,
        |played| played.bytes -= 4096,
        |played| played.faults += 64,
        |played| played.intact = false,
        |played| played.judged = false,
        |played| played.error = "NIC read: byte 0 of page 0 is wrong".into(),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut played = played();
        change(&mut played);
        assert!(
            mismatch(&scenario(), false, 1, &played).is_some(),
            "change {number}"
        );
    }
}

#[test]
fn trouble_says_what_was_expected_and_seen() {
    let mut played = played();
    played.peer_pages = 60;
    assert_eq!(
        mismatch(&scenario(), false, 1, &played).unwrap(),
        "pages with a peer address: expected 64, seen 60"
    );
}

#[test]
fn the_table_has_a_line_per_scenario() {
    let row = |topology: &str, played: Option<Played>| ScenarioResult {
        topology: topology.into(),
        devices: if topology == "iommu" {
            "nouveau + mlx5"
        } else {
            "p2ptest + edu"
        },
        scenario: "resident".into(),
        played,
        trouble: None,
        log: "/p2p/build/run/demo/switch/console.log".into(),
    };
    let bridge = Played {
        map_type: "host_bridge".into(),
        translated: true,
        ..played()
    };
    let mixed = Played {
        peer_pages: 32,
        home_pages: 32,
        reasons: [("bus_addr".into(), 32), ("topology".into(), 32)].into(),
        ..played()
    };
    let text = table(&[
        row("switch", Some(played())),
        row("iommu", Some(bridge)),
        row("two-gpus", Some(mixed)),
        row("blocked", None),
    ]);
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.contains("HOST_BRIDGE (IOVA)"), "{text}");
    assert!(
        text.contains("| iommu    | nouveau + mlx5 | resident |"),
        "{text}"
    );
    assert!(text.contains("BUS_ADDR, mixed"), "{text}");
    assert!(text.contains("topology 32"), "{text}");
    assert!(text.contains("no result"), "{text}");
}

/// A model's log of VRAM DMA, with one process for each number of bytes.
fn witness(bytes: &[u64]) -> Witness {
    let log = bytes.iter().map(|bytes| {
        let dma = format!(r#"{{"event":"dma","to":"vram0","len":{bytes},"ats":false,"ro":false}}"#);
        format!("{dma}\n{{\"event\":\"command\",\"name\":\"DESTROY_QP\"}}\n")
    });
    let sum: u64 = bytes.iter().sum();
    let end = format!(r#"{{"event":"end","ram_bytes":0,"peer_bytes":{sum}}}"#);
    let log = log.chain([end]).collect::<String>();
    Witness(Ok(witness::conversations(&log).unwrap()))
}

#[test]
fn the_log_of_the_nic_must_agree() {
    let none = Played {
        peer_pages: 0,
        ..played()
    };
    let seen = witness(&[64 * 8192, 64 * 4096, 4096]);
    assert_eq!(seen.contradicts(0, 3, &played()), None);
    let told = seen.contradicts(1, 3, &played()).unwrap();
    assert!(told.contains("claimed 524288 bytes"), "{told}");
    assert!(seen.contradicts(2, 3, &none).is_some());
    // Bytes that the scenario does not explain.
    let more = witness(&[64 * 8192 + 4096]);
    assert!(more.contradicts(0, 1, &played()).is_some());
    let told = seen.contradicts(0, 2, &played()).unwrap();
    assert!(told.contains("3 conversations, for 2 scenarios"), "{told}");
    let ran = RunResult::quiet(Path::new("/nonexistent"));
    let told = Witness::read(&ran).contradicts(0, 1, &played()).unwrap();
    assert!(told.contains("/nonexistent/connectx0.log"), "{told}");
}

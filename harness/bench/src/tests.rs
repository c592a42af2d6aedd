use super::*;

use std::fs;

fn figures(lines: &[(&str, u64, u64)]) -> Figures {
    let log: String = lines
        .iter()
        .map(|(case, pages, count)| {
            format!("{{\"case\":\"{case}\",\"pages\":{pages},\"count\":{count}}}\n")
        })
        .collect();
    Figures::parse(&log).unwrap()
}

#[test]
fn the_benchmarks_of_this_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let settings = BenchConfig::read(&root).unwrap();
    let kernels = plan::kernels::Kernels::read(&root).unwrap();
    let topologies = Topologies::read(&root).unwrap();
    for run in &settings.runs {
        kernels.get(&run.kernel).unwrap();
        topologies.get(&run.topology).unwrap();
    }
    for goal in &settings.goals {
        assert!(
            goal.at_most.is_some() || goal.at_least.is_some(),
            "{}",
            goal.name
        );
        for figure in [&goal.of, &goal.to] {
            for word in figure.split_whitespace().filter(|word| word.len() > 1) {
                let (run, _) = word.split_once('.').unwrap();
                assert!(settings.runs.iter().any(|known| known.name == run));
            }
        }
    }
}

#[test]
fn what_is_paid_once_is_left_out() {
    let figures = figures(&[("a", 100, 1500), ("a", 200, 2500), ("b", 4, 40)]);
    assert!((figures.per_page("a").unwrap() - 10.0).abs() < 1e-9);
    assert!((figures.per_page("b").unwrap() - 10.0).abs() < 1e-9);
    assert!(figures.per_page("c").is_none());
    assert!((figures.per_call("a").unwrap() - 500.0).abs() < 1e-9);
    assert!(figures.per_call("b").is_none());
}

#[test]
fn rows_and_calls_are_not_instructions() {
    let run = "[[run]]\nname='x'\nkernel=''\ntopology=''\nwhat=''\n";
    let settings = settings(&format!(
        "{run}[[goal]]\nname='g'\nof='x.a'\nto='x.a'\nat_most=1\n"
    ));
    let lines = [
        ("a", 1, 7),
        ("a", 2, 9),
        ("a_runs", 1, 1),
        ("a_runs", 2, 1),
        ("a_calls", 1, 1),
        ("a_calls", 2, 3),
    ];
    let counted = [("x".to_owned(), figures(&lines))];
    let tables = Results::new(&settings, counted.into(), Vec::new())
        .unwrap()
        .tables();
    let is_row = |line: &&str| line.starts_with("| a");
    let rows: Vec<_> = tables.lines().filter(is_row).collect();
    assert_eq!(rows.len(), 2, "{tables}");
    assert!(rows[0].contains("2.00") && rows[1].contains("5.00"));
}

#[test]
fn a_bend_is_found() {
    let straight = figures(&[("r", 1, 110), ("r", 10, 200), ("r", 100, 1100)]);
    assert!(straight.bend("r").unwrap() < 1e-9);
    let bent = figures(&[("r", 1, 110), ("r", 10, 300), ("r", 100, 1100)]);
    assert!((bent.bend("r").unwrap() - 0.5).abs() < 1e-9);
}

#[test]
fn sums_of_figures() {
    let mut runs = BTreeMap::new();
    let counted = [("a", 1, 7), ("b", 1, 5), ("c", 1, 13), ("c", 2, 16)];
    runs.insert("x".to_owned(), figures(&counted));
    let value = |text: &str| figures::value(text, &runs).unwrap();
    assert_eq!(value("x.a - x.b + x.b"), Some(7.0));
    assert_eq!(value("x.c + x.c:call"), Some(13.0));
    assert!(figures::value("x.a:call", &runs).is_err());
    assert_eq!(value("y.a"), None);
    assert!(figures::value("x.d", &runs).is_err());
}

fn settings(text: &str) -> BenchConfig {
    toml::from_str(&format!("icount = ''\ncpus = 1\nlimit = 1\n{text}")).unwrap()
}

#[test]
fn goals_are_met_or_missed() {
    let run = "[[run]]\nname='x'\nkernel=''\ntopology=''\nwhat=''\n";
    let goal = |limit: &str| format!("[[goal]]\nname='g'\nof='x.a'\nto='x.b'\n{limit}\n");
    let met = |limit: &str| {
        let settings = settings(&format!("{run}{}", goal(limit)));
        let counted = [("x".to_owned(), figures(&[("a", 1, 30), ("b", 1, 20)]))];
        let results = Results::new(&settings, counted.into(), Vec::new()).unwrap();
        assert!(results.tables().contains("1.5000"));
        results.all_met()
    };
    assert!(met("at_most = 1.5"));
    assert!(!met("at_most = 1.4"));
    assert!(met("at_least = 1.5"));
    assert!(!met("at_least = 1.6"));
}

#[test]
fn page_and_data_say_of_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let run = "[[run]]\nname='x'\nkernel=''\ntopology=''\nwhat=''\n\
               [[goal]]\nname='g'\nof='x.a'\nto='x.a'\nat_most=1\n";
    let counted = [("x".to_owned(), figures(&[("a", 1, 1000)]))];
    let results = Results::new(&settings(run), counted.into(), Vec::new()).unwrap();
    results
        .write(dir.path(), "Recorded on 1 May 2026.")
        .unwrap();
    let [page, data, _] = RESULTS.map(|name| fs::read_to_string(dir.path().join(name)).ok());
    let (page, data) = (page.unwrap(), data.unwrap());
    assert!(page.starts_with("Recorded on 1 May 2026.\n"), "{page}");
    let data: serde_json::Value = serde_json::from_str(&data).unwrap();
    assert_eq!(data["recorded"], "Recorded on 1 May 2026.");
    assert_eq!(data["goals"][0]["met"], true);
}

#[test]
fn a_second_run_must_be_the_same() {
    let run = "[[run]]\nname='x'\nkernel=''\ntopology=''\nwhat=''\n\
               [[run]]\nname='y'\nkernel=''\ntopology=''\nwhat=''\nsame_as='x'\n\
               [[goal]]\nname='g'\nof='x.a'\nto='x.a'\nat_most=1\n";
    let same = |count| {
        let counted = [
            ("x".to_owned(), figures(&[("a", 1, 1000)])),
            ("y".to_owned(), figures(&[("a", 1, count)])),
        ];
        Results::new(&settings(run), counted.into(), Vec::new())
            .unwrap()
            .all_met()
    };
    assert!(same(1009));
    assert!(!same(1011));
}

#[test]
fn a_picture_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.svg");
    let mut runs = BTreeMap::new();
    runs.insert(
        "some run".to_owned(),
        figures(&[
            ("range", 1, 110),
            ("range", 10, 200),
            ("map_x_by_1", 4, 400),
            ("map_x_by_8", 4, 80),
        ]),
    );
    plot::draw(&file, &runs).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let has_line = |name: &str| text.lines().any(|line| line.trim() == name);
    assert!(
        has_line("some run") && has_line("some run: map_x"),
        "{text}"
    );
    assert!(text.matches("<polyline").count() >= 2, "{text}");
}

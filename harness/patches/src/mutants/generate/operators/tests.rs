use super::super::source::lines;
use super::*;

/// The changes of the last line of a function's body, as `operator: line`.
fn of(body: &str, language: Language) -> Vec<String> {
    let text = match language {
        Language::C => format!("int f(void)\n{{\n{body}\n\tg();\n}}\n"),
        Language::Rust => format!("fn f() {{\n{body}\n    g()\n}}\n"),
    };
    let number = 2 + usize::from(language == Language::C) + body.matches('\n').count();
    let lines = lines(&text, language);
    let last = body.lines().last().unwrap();
    let found = lines.iter().find(|line| line.number == number);
    let all = found.map(|line| changes(last, line, language));
    let all = all.unwrap_or_default().into_iter();
    all.map(|change| format!("{}: {}", change.operator, change.becomes.trim()))
        .collect()
}

fn c(body: &str) -> Vec<String> {
    of(body, Language::C)
}

fn rust(body: &str) -> Vec<String> {
    of(body, Language::Rust)
}

#[test]
fn comparisons_are_turned_and_moved_by_one() {
    for (line, turned, moved) in [
        ("x = a == b;", "x = a != b;", None),
        ("x = a != b;", "x = a == b;", None),
        ("x = a < b;", "x = a >= b;", Some("x = a <= b;")),
        ("x = a <= b;", "x = a > b;", Some("x = a < b;")),
        ("x = a > b;", "x = a <= b;", Some("x = a >= b;")),
        ("x = a >= b;", "x = a < b;", Some("x = a > b;")),
    ] {
        let mut expected = vec![format!("compare: {turned}")];
        expected.extend(moved.map(|moved| format!("boundary: {moved}")));
        assert_eq!(c(line), expected);
        assert_eq!(rust(line), expected);
    }
}

#[test]
fn types_pointers_signs_closures_and_shifts_are_no_operators() {
    for line in [
        "let x: Vec<u8> = f::<T>(a)?;",
        "let x = |a: &'a T| -> U { a };",
        "let x = y.map(|| z);",
        "let x = move || z;",
        "let x = &&y;",
        "let x = -y;",
        "x <<= y;",
        "let x = y >> z;",
        "match x { A => b }",
        "let x = y.0;",
    ] {
        assert_eq!(rust(line), Vec::<String>::new(), "{line}");
    }
    for line in ["x = *y;", "x = -y;", "x = y->z;", "x = y++;", "x = &y;"] {
        assert_eq!(c(line), Vec::<String>::new(), "{line}");
    }
}

#[test]
fn comments_strings_and_what_prints_are_left_alone() {
    for line in [
        "/* a == 1 */",
        "x = y; // a == 1",
        "x = \"a == 1\";",
        "x = '1';",
        "pr_info(\"%d\", a + 1);",
        "dev_err(dev, \"%d\",\n\ta + 1);",
        "#define X (a == 1)",
    ] {
        assert_eq!(c(line), Vec::<String>::new(), "{line}");
    }
    for line in ["/// a == 1", "x = r\"a == 1\";", "pr_err!(\"{}\", a + 1);"] {
        assert_eq!(rust(line), Vec::<String>::new(), "{line}");
    }
}

#[test]
fn and_becomes_or_also_at_the_start_of_a_line() {
    let negated = "negate: if (!(a && b))".to_owned();
    assert_eq!(c("if (a && b)"), ["logic: if (a || b)".to_owned(), negated]);
    assert_eq!(rust("let x = a\n    || b;"), ["logic: && b;"]);
    assert_eq!(rust("f(a,\n    || b);"), Vec::<String>::new());
}

#[test]
fn conditions_are_negated() {
    assert_eq!(c("if (f(a))"), ["negate: if (!(f(a)))"]);
    assert_eq!(c("if (!f(a))"), ["negate: if (f(a))"]);
    assert_eq!(c("} else if (f(a)) {"), ["negate: } else if (!(f(a))) {"]);
    // It has the opposite as a comparison already.
    assert_eq!(c("if (a == b)"), ["compare: if (a != b)"]);
    // It goes on.
    assert_eq!(c("if (f(a,"), Vec::<String>::new());
    assert_eq!(rust("if x.y() {"), ["negate: if !(x.y()) {"]);
    assert_eq!(rust("if !x.y() {"), ["negate: if x.y() {"]);
    assert_eq!(rust("if let Some(x) = y {"), Vec::<String>::new());
}

#[test]
fn numbers_grow_and_vanish() {
    assert_eq!(c("x = 0;"), ["up: x = 1;"]);
    assert_eq!(c("x = 4UL;"), ["up: x = 5UL;", "zero: x = 0UL;"]);
    assert_eq!(c("x = 0xf;"), ["up: x = 0x10;", "zero: x = 0;"]);
    assert_eq!(
        rust("x = 1_000_u64;"),
        ["up: x = 1001u64;", "zero: x = 0u64;"]
    );
    assert_eq!(
        rust("x = &y[1..];"),
        ["up: x = &y[2..];", "zero: x = &y[0..];"]
    );
    // The mode of a file, a number that is too large, and names.
    for line in ["x = 0644;", "x = 18446744073709551615;", "x1 = y2;"] {
        assert_eq!(c(line), Vec::<String>::new(), "{line}");
    }
}

#[test]
fn sums_are_turned() {
    assert_eq!(c("x = a + b;"), ["plus: x = a - b;"]);
    assert_eq!(rust("x -= b;"), ["plus: x += b;"]);
}

#[test]
fn errors_succeed_and_returns_go_on() {
    assert_eq!(
        c("if (a)\n\treturn -EINVAL;"),
        ["succeed: return 0;", "go-on: ;"]
    );
    assert_eq!(c("return ERR_PTR(-EIO);")[0], "succeed: return NULL;");
    assert_eq!(c("ret = -EIO;"), ["succeed: ret = 0;"]);
    assert_eq!(c("goto out;"), ["go-on: ;"]);
    assert_eq!(c("return false;"), ["return: return true;", "go-on: ;"]);
    // It goes on on the next line.
    assert_eq!(c("return -EINVAL +\n\tret;"), Vec::<String>::new());
    assert_eq!(
        rust("return Err(EINVAL);"),
        ["succeed: return Ok(());", "go-on: "]
    );
    assert_eq!(rust("true"), ["return: false"]);
    // The function needs a value.
    let text = "int f(void)\n{\n\treturn ret;\n}\n";
    let lines = lines(text, Language::C);
    let all = changes("\treturn ret;", &lines[0], Language::C);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].becomes, "\treturn 0;");
}

#[test]
fn loops_end_and_go_on() {
    assert_eq!(c("continue;"), ["loop: break;"]);
    assert_eq!(c("break;"), ["loop: continue;"]);
    assert_eq!(rust("_ => continue,"), ["loop: _ => break,"]);
    assert_eq!(rust("break x;"), Vec::<String>::new());
}

#[test]
fn calls_are_left_out() {
    for (line, operator) in [
        ("mutex_lock(&x->barrier);", "unlock"),
        ("guard(rcu)();", "unlock"),
        ("smp_wmb();", "barrier"),
        ("put_page(page);", "reference"),
        ("list_del(&x);", "call"),
        ("list_del_locked(&x);", "call"),
    ] {
        assert_eq!(c(line), [format!("{operator}: ;")], "{line}");
    }
    assert_eq!(c("if (a)\n\tf(b);"), ["call: ;"]);
    for line in [
        "x = f(a);",
        "x = y +\n\tf(a);",
        "f(a,",
        "WARN_ON(a);",
        "lockdep_assert_held(a);",
    ] {
        assert_eq!(c(line), Vec::<String>::new(), "{line}");
    }
    for (line, operator) in [
        ("self.x.f(a);", "call"),
        ("self.x.f(a)?;", "call"),
        ("drop(x);", "reference"),
        ("let _guard = self.lock();", "unlock"),
        ("unsafe { bindings::put(x) };", "reference"),
        ("let _ = x.f();", "call"),
    ] {
        let expected = match line {
            // Without a name, it protects nothing.
            "let _ = x.f();" => Vec::new(),
            _ => vec![format!("{operator}: ")],
        };
        assert_eq!(rust(line), expected, "{line}");
    }
    for line in [
        "let x = f(a);",
        "let (a, b) = f(a);",
        "assert!(a);",
        "x = f(a);",
        "return f(a)",
    ] {
        assert_eq!(rust(line), Vec::<String>::new(), "{line}");
    }
}

use super::*;
use crate::device::fault::LAST_EVENT;
use crate::device::mkey::{MTT_READ, MTT_WRITE};
use crate::device::{EQ_ARM, EQ_UPDATE, LOG_BLUE_FLAME};

const IFC: &str = "\
/* struct mlx5_ifc_comment_bits { u8 x[0x1]; }; */
#include \"mlx5_ifc_fpga.h\"
enum {
	OP_A		= 0x200, // first
	OP_B,
	OP_C = (1ull << OP_SHIFT) | BIT(3),
	OP_MASK = GENMASK(5, 2) << 8,
	OP_NOT = ~0,
	OP_AFTER_NOT,
	OP_LAST = -1
};
#define OP_SHIFT 6
#define OP_CALL(x) (x)
#define OP_LONG (OP_SHIFT +\\
		 1)
#define OP_BE cpu_to_be32(0x100)
#define OP_CAST ((u64)1 << 40)
#define OP_LOOP OP_LOOP
#if defined(A)
#define OP_EITHER 1
#else
#define OP_EITHER 2
#endif

struct mlx5_ifc_inner_bits {
	u8         reserved_at_0[0x8];
	u8         number[0x18];

	u8         wide[0x40];
};

union mlx5_ifc_either_auto_bits {
	struct mlx5_ifc_inner_bits inner;
	u8         reserved_at_0[0x80];
};

struct mlx5_ifc_outer_bits {
	u8         flag[0x1];
	u8	   rest[0x1f];

	struct mlx5_ifc_inner_bits list[2];

	union mlx5_ifc_either_auto_bits
		either;

	union {
		u8         left[0x20];
		struct {
			u8         high[0x10];
			u8         low[0x10];
		};
	};

	u8         mask[2][4][0x10];

	u8         pas[][0x40];
};

struct mlx5_ifc_broken_bits {
#ifdef CONFIG_X
	u8         x[0x20];
#endif
};
";

const DEVICE: &str = "\
enum { LENGTH = 6 };

struct mlx5_inner {
	u8	first;
	__be16	second;
	__be64	third;
};

struct mlx5_outer {
	u8	tag[LENGTH / 2];
	struct mlx5_inner inner[2];
	u8	low:3;
	u8	high:5;
	struct_group(trailer,
		u8	a;
		__be16	b;
	);
	union {
		struct {
			__be16	x;
			__be32	y;
		} __packed packed;
		__be64	z;
	} __packed;
	u32	host;
	union {
		u8	start[2];
		DECLARE_FLEX_ARRAY(u8, data);
	};
	__be32	end[];
};

struct mlx5_foreign {
	struct list_head list;
};

struct mlx5_calls {
	void (*event)(struct mlx5_calls *);
};
";

fn headers() -> Headers {
    Headers::parse(&[("mlx5_ifc.h", IFC), ("device.h", DEVICE)]).unwrap()
}

#[track_caller]
fn at(layout: &str, path: &str, at: usize, bits: usize) {
    let field = headers().field(layout, path).unwrap();
    assert_eq!(field, Field { at, bits }, "{layout}.{path}");
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug>, why: &[&str]) {
    let error = format!("{:#}", result.unwrap_err());
    for why in why {
        assert!(error.contains(why), "{error} does not say {why}");
    }
}

#[test]
fn bits_are_counted_as_the_driver_does() {
    at("outer", "flag", 0, 1);
    at("outer", "rest", 1, 0x1f);
    at("outer", "list", 0x20, 0x60);
    at("outer", "list.number", 0x28, 0x18);
    at("outer", "list[1].wide", 0xa0, 0x40);
    at("outer", "either.inner.wide", 0x100, 0x40);
    at("outer", "left", 0x160, 0x20);
    at("outer", "low", 0x170, 0x10);
    at("outer", "mask", 0x180, 0x10);
    at("outer", "mask[1][2]", 0x1e0, 0x10);
    at("outer", "pas", 0x200, 0x40);
    at("outer", "pas[3]", 0x2c0, 0x40);
    assert_eq!(headers().size("outer").unwrap(), 0x40);
    assert_eq!(headers().size("either_auto").unwrap(), 0x10);
}

// Compared with gcc on x86-64.
#[test]
fn members_are_placed_as_c_does() {
    at("mlx5_outer", "tag[2]", 2 * 8, 8);
    at("mlx5_outer", "inner.second", 10 * 8, 16);
    at("mlx5_outer", "inner[1].third", 32 * 8, 64);
    // Bit fields start at the low end of a byte.
    at("mlx5_outer", "low", 40 * 8 + 5, 3);
    at("mlx5_outer", "high", 40 * 8, 5);
    at("mlx5_outer", "a", 42 * 8, 8);
    at("mlx5_outer", "trailer.b", 44 * 8, 16);
    at("mlx5_outer", "packed.y", 48 * 8, 32);
    at("mlx5_outer", "z", 46 * 8, 64);
    at("mlx5_outer", "data", 60 * 8, 8);
    at("mlx5_outer", "end[1]", 68 * 8, 32);
    assert_eq!(headers().size("mlx5_outer").unwrap(), 64);
}

#[test]
fn what_is_missing_is_named() {
    let headers = headers();
    let field = |layout, path| headers.field(layout, path);
    refused(
        field("inner", "nothing"),
        &["mlx5_ifc_inner_bits", "nothing", "mlx5_ifc.h:25"],
    );
    refused(field("outer", "either.inner.x"), &["outer", "no x"]);
    refused(field("none", "x"), &["mlx5_ifc_none_bits", "mlx5_ifc.h"]);
    refused(field("comment", "x"), &["mlx5_ifc_comment_bits"]);
    refused(field("mlx5_none", "x"), &["mlx5_none"]);
    refused(field("outer", "list[2]"), &["no element 2"]);
    refused(field("outer", "flag[0]"), &["fewer dimensions"]);
    refused(field("outer", "flag.x"), &["no members"]);
    refused(field("outer", "mask[x]"), &["index x"]);
    refused(field("outer", ""), &["a name is missing"]);
    refused(field("broken", "x"), &["broken", "#if"]);
    refused(field("mlx5_outer", "host"), &["byte order"]);
    refused(field("mlx5_foreign", "list"), &["list_head"]);
    refused(headers.size("mlx5_calls"), &["mlx5_calls", "line"]);
}

#[test]
fn constants_have_the_values_written() {
    let headers = headers();
    let value = |name: &str| headers.constant(name);
    assert_eq!(value("OP_A").unwrap(), 0x200);
    assert_eq!(value("OP_B").unwrap(), 0x201);
    assert_eq!(value("OP_C").unwrap(), 0x48);
    assert_eq!(value("OP_MASK").unwrap(), 0x3c00);
    assert_eq!(value("OP_LAST").unwrap(), u64::MAX);
    assert_eq!(value("OP_LONG").unwrap(), 7);
    assert_eq!(value("OP_CAST").unwrap(), 1 << 40);
    assert_eq!(value("OP_BE").unwrap(), 0x100);
    refused(value("OP_NOT"), &["OP_NOT", "mlx5_ifc.h", "~"]);
    refused(value("OP_AFTER_NOT"), &["~"]);
    refused(value("OP_CALL"), &["OP_CALL"]);
    refused(value("OP_LOOP"), &["itself"]);
    refused(value("OP_EITHER"), &["more than one value"]);
    let names = headers.names("OP_");
    assert_eq!(names[&0x200], "A");
    assert!(!names.values().any(|name| name == "NOT"));
}

#[test]
fn numbers_of_any_width_and_place() {
    for at in 0..24 {
        for width in 1..=64u32 {
            let bits = width as usize;
            let field = Field { at, bits };
            let value = 0xa5c3_9617_f00d_5a3c_u64.rotate_left(width) >> (64 - width);
            for filler in [0x00, 0xff] {
                let mut buf = [filler; 11];
                field.set(&mut buf, value | 1u64.checked_shl(width).unwrap_or(0));
                assert_eq!(field.get(&buf), value, "{field:?}");
                let bit = |i: usize| buf[i / 8] >> (7 - i % 8) & 1;
                let others = (0..88).filter(|i| !(at..at + bits).contains(i));
                assert!(
                    others.into_iter().all(|i| bit(i) == filler & 1),
                    "{field:?}"
                );
            }
        }
    }
    let mut buf = [0x12, 0x34, 0x56, 0x78];
    assert_eq!(Field { at: 8, bits: 24 }.get(&buf), 0x34_5678);
    Field { at: 12, bits: 8 }.set(&mut buf, 0xabc);
    assert_eq!(buf, [0x12, 0x3b, 0xc6, 0x78]);
}

#[test]
fn what_is_not_in_the_buffer_is_zero() {
    let far = [
        (24, 9),
        (32, 1),
        (0, 0),
        (0, 65),
        (usize::MAX, 8),
        (8, usize::MAX),
    ];
    for (at, bits) in far {
        let field = Field { at, bits };
        let mut buf = [0xff; 4];
        assert_eq!(field.get(&buf), 0, "{field:?}");
        field.set(&mut buf, 0);
        assert_eq!(buf, [0xff; 4], "{field:?}");
    }
}

#[test]
fn elements_of_arrays() {
    let pas = headers().field("outer", "pas").unwrap();
    assert_eq!(pas.nth(3), headers().field("outer", "pas[3]").unwrap());
}

#[test]
fn the_kernel_has_all_that_is_used() {
    let Some(headers) = crate::testing::headers() else {
        return;
    };
    let layouts = Layouts::load(headers).unwrap();
    let constants = Constants::load(headers).unwrap();
    let variant = layouts.mkc.mkey_7_0.bits;
    assert_eq!(variant, MKEY_VARIANT_BITS as usize);
    assert_eq!(layouts.create_mkey_out.mkey_index.bits, 32 - variant);
    let header = fs::read_to_string(crate::testing::header("driver.h")).unwrap();
    assert!(header.contains("mlx5_mkey_to_idx(u32 mkey)\n{\n\treturn mkey >> 8;\n"));
    // The hardware interface is stable, so these offsets never change.
    let fields = [
        (layouts.mkc.free, 0x1, 0x1),
        (layouts.mkc.access_mode_1_0, 0x16, 0x2),
        (layouts.mkc.qpn, 0x20, 0x18),
        (layouts.mkc.mkey_7_0, 0x38, 0x8),
        (layouts.mkc.pd, 0x68, 0x18),
        (layouts.mkc.start_addr, 0x80, 0x40),
        (layouts.mkc.len, 0xc0, 0x40),
        (layouts.create_mkey_in.context, 0x80, 0x200),
        (layouts.create_eq_in.pas, 0x880, 0x40),
        (layouts.ctrl.qpn_ds, 0x20, 0x20),
        (layouts.ctrl.fm_ce_se, 0x58, 0x8),
        (layouts.ctrl.imm, 0x60, 0x20),
        (layouts.cqe.op_own, 0x1f8, 0x8),
        (layouts.eqe.owner, 0x1f8, 0x8),
    ];
    for (index, (field, at, bits)) in fields.into_iter().enumerate() {
        assert_eq!(field, Field { at, bits }, "entry {index}");
    }
    let sizes = [
        (layouts.mkc.size, 64),
        (layouts.ctrl.size, 16),
        (layouts.cqe.size, 64),
        (layouts.eqe.size, 64),
        (layouts.cmd.size, 64),
        (layouts.block.size, 576),
    ];
    for (size, expected) in sizes {
        assert_eq!(size, expected);
    }
    assert_eq!(constants.mkey_mask.free, 1 << 29);
    assert_eq!(headers.ops()[&0x200], "CREATE_MKEY");
}

/// The model reads the headers only. What the driver's sources define, it repeats.
#[test]
fn the_driver_has_what_the_model_repeats() {
    let Some(headers) = crate::testing::headers() else {
        return;
    };
    let read = |file: &str| std::fs::read_to_string(crate::testing::tree().join(file)).unwrap();
    let core = "drivers/net/ethernet/mellanox/mlx5/core";
    let ib = "drivers/infiniband/hw/mlx5";
    for (file, name, ours) in [
        (format!("{core}/eq.c"), "MLX5_EQ_DOORBELL_OFFSET", EQ_ARM),
        (format!("{ib}/mlx5_ib.h"), "MLX5_IB_MTT_READ", MTT_READ),
        (format!("{ib}/mlx5_ib.h"), "MLX5_IB_MTT_WRITE", MTT_WRITE),
        (
            format!("{ib}/odp.c"),
            "MLX5_MEMORY_PAGE_FAULT_FLAGS_LAST",
            LAST_EVENT,
        ),
    ] {
        let source = Headers::parse(&[(&file, &read(&file))]).unwrap();
        assert_eq!(source.constant(name).unwrap(), ours, "{name} in {file}");
    }
    // It counts in words of four bytes.
    let update = format!("eq->doorbell + (arm ? 0 : {});", (EQ_UPDATE - EQ_ARM) / 4);
    let source = read(&format!("{core}/lib/eq.h"));
    assert!(source.contains(&update), "lib/eq.h has no {update}");
    // The BlueFlame registers are the rest of a page.
    let uar = Constants::load(headers).unwrap().uar;
    let end = uar.blue_flame + (uar.blue_flames << LOG_BLUE_FLAME);
    assert_eq!(end, 1 << uar.page_shift);
}

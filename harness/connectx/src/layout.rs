//! Reads the layout of mlx5 hardware structures from the kernel's headers.
//!
//! The model and the driver must agree on every bit. The headers in `include/linux/mlx5`
//! define all of them, so this module does not repeat any offsets. A field that a newer
//! kernel moves is found at its new place. For a renamed field, [`Layouts::load`] returns an
//! error that names the structure, the field and the header.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

mod cstruct;
mod ifc;
#[cfg(test)]
mod tests;

use cstruct::Declarations;
use ifc::Layout;

/// The width of `mkc.mkey_7_0`: the variant, which are the low bits of an mkey. The driver
/// chooses it. The index is above it.
const MKEY_VARIANT_BITS: u32 = 8;

/// Returns the index of an mkey, as the driver's `mlx5_mkey_to_idx()`.
#[must_use]
pub fn mkey_to_idx(mkey: u32) -> u32 {
    mkey >> MKEY_VARIANT_BITS
}

/// Returns the variant of an mkey, as the driver's `mlx5_mkey_variant()`.
#[must_use]
pub fn mkey_variant(mkey: u32) -> u32 {
    mkey & ((1 << MKEY_VARIANT_BITS) - 1)
}

/// Returns the mkey of an index and a variant.
#[must_use]
pub fn idx_to_mkey(index: u32, variant: u32) -> u32 {
    index << MKEY_VARIANT_BITS | variant
}

/// A big-endian number in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bit offset from the start of the structure; 0 is the highest bit of the
    /// first byte.
    pub at: usize,
    /// Width in bits. Nested structures, which are no numbers, may exceed 64.
    pub bits: usize,
}

impl Field {
    /// Reads the number. Buffers come from the guest and may be too short: a missing
    /// field reads as 0, as does a field that is no number.
    #[must_use]
    pub fn get(self, buf: &[u8]) -> u64 {
        let Some((first, last)) = self.span(buf.len()) else {
            return 0;
        };
        let bytes = buf[first..=last].iter();
        let all = bytes.fold(0u128, |all, byte| all << 8 | u128::from(*byte));
        let value = (all >> self.below(last)) & self.mask();
        // span() guarantees at most 64 bits.
        u64::try_from(value).unwrap_or_default()
    }

    /// Stores the low bits of `value`, unless the field is not in `buf`.
    pub fn set(self, buf: &mut [u8], value: u64) {
        let Some((first, last)) = self.span(buf.len()) else {
            return;
        };
        let below = self.below(last);
        let mask = self.mask() << below;
        let value = (u128::from(value) << below & mask).to_le_bytes();
        let lowest_first = buf[first..=last].iter_mut().rev();
        for (byte, (mask, value)) in lowest_first.zip(mask.to_le_bytes().into_iter().zip(value)) {
            *byte = *byte & !mask | value;
        }
    }

    /// Byte offset of the byte where the field starts.
    #[must_use]
    pub fn byte(self) -> usize {
        self.at / 8
    }

    /// The array element `index` places after this one. A field that is an array
    /// stands for its first element.
    #[must_use]
    pub fn nth(self, index: usize) -> Self {
        let at = self.at.saturating_add(self.bits.saturating_mul(index));
        Field { at, ..self }
    }

    /// The first and the last byte of a number in a buffer of `len` bytes.
    fn span(self, len: usize) -> Option<(usize, usize)> {
        let last = self.at.checked_add(self.bits)?.checked_sub(1)? / 8;
        ((1..=64).contains(&self.bits) && last < len).then_some((self.at / 8, last))
    }

    /// How many bits of the last byte follow the field.
    fn below(self, last: usize) -> usize {
        last * 8 + 8 - (self.at + self.bits)
    }

    fn mask(self) -> u128 {
        (1 << self.bits) - 1
    }
}

/// The kernel's headers of the device.
#[derive(Debug)]
pub struct Headers {
    declarations: Declarations,
}

impl Headers {
    /// Reads the headers in a folder, `include/linux/mlx5` of a kernel.
    ///
    /// # Errors
    ///
    /// A header cannot be read.
    pub fn read(dir: &Path) -> Result<Self> {
        let folder = || format!("headers of mlx5 in {}", dir.display());
        let mut headers = BTreeMap::new();
        for entry in fs::read_dir(dir).with_context(folder)? {
            let path = entry.with_context(folder)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(name) = name.filter(|_| path.extension().is_some_and(|e| e == "h")) {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                headers.insert(name.to_string(), text);
            }
        }
        for name in ["mlx5_ifc.h", "device.h", "qp.h"] {
            ensure!(headers.contains_key(name), "no {name} in {}", dir.display());
        }
        let texts = headers.iter().map(|(name, text)| (&**name, &**text));
        Self::parse(&texts.collect::<Vec<_>>())
    }

    /// Reads headers, each a name for messages and a text.
    ///
    /// # Errors
    ///
    /// None. A declaration that is not understood becomes an error when it is looked up.
    pub fn parse(texts: &[(&str, &str)]) -> Result<Self> {
        let mut declarations = Declarations::default();
        for (name, text) in texts {
            declarations.add(name, text);
        }
        Ok(Self { declarations })
    }

    /// A field of a structure by its path, such as `a.b` or `a[2].b`. For an array,
    /// the first element.
    ///
    /// `layout` is `x` for `mlx5_ifc_x_bits`, or the name of a C struct.
    ///
    /// # Errors
    ///
    /// There is no such structure or field, or it is not understood.
    pub fn field(&self, layout: &str, path: &str) -> Result<Field> {
        Layout::new(&self.declarations, layout).field(&self.declarations, path)
    }

    /// Size of a structure in bytes, without the flexible array at its end.
    ///
    /// # Errors
    ///
    /// There is no such structure, or it is not understood.
    pub fn size(&self, layout: &str) -> Result<usize> {
        Layout::new(&self.declarations, layout).size(&self.declarations)
    }

    /// Value of an enumerator or macro; negative ones as two's complement.
    ///
    /// # Errors
    ///
    /// There is no such name, or its value is not understood.
    pub fn constant(&self, name: &str) -> Result<u64> {
        let value = self.declarations.constant(name)?;
        match number(value) {
            Some(value) => Ok(value),
            None => bail!("{name} is {value}, which has more than 64 bits"),
        }
    }

    /// The names of values, for messages: all names that start with `prefix`,
    /// without the prefix. The first name of a value counts.
    #[must_use]
    pub fn names(&self, prefix: &str) -> BTreeMap<u64, String> {
        let mut names = BTreeMap::new();
        for (name, value) in self.declarations.constants(prefix) {
            // The bounds of enumerations are not values.
            let name = &name[prefix.len()..];
            if let Some(value) = number(value).filter(|_| name != "MAX" && name != "NUM") {
                names.entry(value).or_insert_with(|| name.to_string());
            }
        }
        names
    }

    /// Names of the opcodes of commands.
    #[must_use]
    pub fn ops(&self) -> BTreeMap<u64, String> {
        // The header uses both prefixes for one list.
        let mut ops = self.names("MLX5_CMD_OPCODE_");
        ops.extend(self.names("MLX5_CMD_OP_"));
        ops
    }

    /// The minimum sizes of each command and its answer, without the list at the end. 0 if
    /// the header does not define them.
    #[must_use]
    pub fn op_sizes(&self) -> BTreeMap<u64, (usize, usize)> {
        let sizes = |(op, name): (u64, String)| {
            let name = match name.to_lowercase().as_str() {
                // The structures of these commands have other names.
                "access_reg" => "access_register".to_owned(),
                "2err_qp" => "qp_2err".to_owned(),
                "2rst_qp" => "qp_2rst".to_owned(),
                name => name.to_owned(),
            };
            let size = |way: &str| self.size(&format!("{name}_{way}")).unwrap_or(0);
            (op, (size("in"), size("out")))
        };
        self.ops().into_iter().map(sizes).collect()
    }
}

fn number(value: i128) -> Option<u64> {
    let negative = i64::try_from(value).ok().map(i64::cast_unsigned);
    u64::try_from(value).ok().or(negative)
}

/// Declares structures: `name: Type("layout") { field, other = "a.path", … }`.
///
/// A field without a path has the same name as in the header. Each type has its
/// size in bytes and its fields; `Layouts` has all types.
macro_rules! layouts {
    ($($name:ident: $type:ident($layout:literal) {
        $($field:ident $(= $path:literal)?),* $(,)?
    })*) => {
        $(
            #[doc = concat!("Fields of `", $layout, "`.")]
            #[derive(Clone, Copy, Debug)]
            pub struct $type {
                /// Size in bytes, without the flexible array at the end.
                #[allow(dead_code, reason = "of most structures it is of no interest")]
                pub size: usize,
                $(
                    #[doc = concat!("`", layouts!(@path $field $($path)?), "`")]
                    pub $field: Field,
                )*
            }

            impl $type {
                #[doc = concat!("Finds `", $layout, "` in the headers.")]
                ///
                /// # Errors
                ///
                /// A field is not there.
                pub fn load(headers: &Headers) -> Result<Self> {
                    Ok(Self {
                        size: headers.size($layout)?,
                        $($field: headers.field($layout, layouts!(@path $field $($path)?))?,)*
                    })
                }
            }
        )*

        /// Fields of all structures that the model uses.
        #[derive(Clone, Debug)]
        pub struct Layouts {
            $(
                #[doc = concat!("`", $layout, "`")]
                pub $name: $type,
            )*
        }

        impl Layouts {
            /// Finds all structures in the headers.
            ///
            /// # Errors
            ///
            /// A structure or a field is not there.
            pub fn load(headers: &Headers) -> Result<Self> {
                Ok(Self { $($name: $type::load(headers)?,)* })
            }
        }
    };
    (@path $field:ident) => { stringify!($field) };
    (@path $field:ident $path:literal) => { $path };
}

/// Declares constants: `name: Type { field = "NAME", … }`, and `Constants` with
/// all of them.
macro_rules! constants {
    ($(
        $(#[$doc:meta])*
        $name:ident: $type:ident { $($field:ident = $constant:literal),* $(,)? }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $type {
                $(
                    #[doc = concat!("`", $constant, "`")]
                    pub $field: u64,
                )*
            }

            impl $type {
                /// Finds the values in the headers.
                ///
                /// # Errors
                ///
                /// A name is not there.
                pub fn load(headers: &Headers) -> Result<Self> {
                    Ok(Self { $($field: headers.constant($constant)?,)* })
                }
            }
        )*

        /// All constants that the model uses.
        #[derive(Clone, Debug)]
        pub struct Constants {
            $(
                $(#[$doc])*
                pub $name: $type,
            )*
        }

        impl Constants {
            /// Finds all values in the headers.
            ///
            /// # Errors
            ///
            /// A name is not there.
            pub fn load(headers: &Headers) -> Result<Self> {
                Ok(Self { $($name: $type::load(headers)?,)* })
            }
        }
    };
}

layouts! {
    // The command ring. The kernel declares the common part of all commands in the driver,
    // not in a header, so any command without its own fields serves here.
    cmd: Cmd("mlx5_cmd_layout") {
        inlen, in_ptr, input = "in", out, out_ptr, outlen, status_own,
    }
    block: Block("mlx5_cmd_prot_block") { next, block_num }
    mbox_in: MboxIn("alloc_pd_in") { opcode, op_mod }
    mbox_out: MboxOut("alloc_pd_out") { status }
    init_seg: InitSeg("mlx5_init_seg") {
        fw_rev, cmdif_rev_fw_sub, cmdq_addr_h, cmdq_addr_l_sz, cmd_dbell, internal_timer_h,
        internal_timer_l, health_counter,
    }

    // Contexts of objects.
    mkc: Mkc("mkc") {
        free, umr_en, access_mode_1_0, access_mode_4_2, a, rw, rr, lw, lr,
        relaxed_ordering_write, relaxed_ordering_read, small_fence_on_rdma_read_response, qpn,
        mkey_7_0, length64, bsf_en, en_rinval, pd, start_addr, len, translations_octword_size,
        log_page_size, ma_translation_mode,
    }
    mtt: Mtt("mlx5_mtt") { ptag }
    klm: Klm("mlx5_klm") { bcount, key, va }
    qpc: Qpc("qpc") {
        state, st, pm_state, pd, mtu, log_msg_max, log_rq_size, log_rq_stride, no_sq, log_sq_size,
        uar_page, user_index, log_page_size, page_offset, remote_qpn, log_sra_max, log_rra_max,
        retry_count, rnr_retry, next_send_psn, next_rcv_psn, cqn_snd, cqn_rcv, rre, rwe, rae,
        min_rnr_nak, dbr_addr, q_key, rq_type, srqn = "srqn_rmpn_xrqn", hw_sq_wqebb_counter,
        sw_sq_wqebb_counter, hw_rq_counter, rlky,
        pkey_index = "primary_address_path.pkey_index",
        port = "primary_address_path.vhca_port_num",
        rlid = "primary_address_path.rlid",
        grh = "primary_address_path.grh",
        hop_limit = "primary_address_path.hop_limit",
        sl = "primary_address_path.sl",
        mlid = "primary_address_path.mlid",
        src_addr_index = "primary_address_path.src_addr_index",
        tclass = "primary_address_path.tclass",
        stat_rate = "primary_address_path.stat_rate",
        ack_timeout = "primary_address_path.ack_timeout",
        rgid = "primary_address_path.rgid_rip",
    }
    cqc: Cqc("cqc") {
        cqe_sz, page_offset, log_cq_size, c_eqn_or_apu_element, log_page_size, producer_counter,
        dbr_addr,
    }
    xrc_srqc: XrcSrqc("xrc_srqc") {
        log_xrc_srq_size, log_rq_stride, page_offset, cqn, user_index_equal_xrc_srqn,
        log_page_size, user_index, pd, lwm, db_record_addr_h, db_record_addr_l,
    }
    wq: Wq("wq") {
        page_offset, lwm, pd, dbr_addr, log_wq_stride, log_wq_pg_sz, log_wq_sz,
    }

    // Capabilities.
    cap: Cap("cmd_hca_cap") {
        vhca_id, log_max_srq_sz, log_max_qp_sz, log_max_qp, log_max_srq, log_max_cq_sz,
        log_max_cq, log_max_eq_sz, log_max_mkey, log_max_eq, max_indirection, fixed_buffer_size,
        log_max_mrw_sz, umr_extended_translation_offset, null_mkey, log_max_klm_list_size,
        log_max_ra_req_qp, log_max_ra_res_qp, pkey_table_size, ib_virt, local_ca_ack_delay,
        num_ports, log_max_msg, cqe_version, compact_address_vector, pg, atomic, cq_moderation,
        cq_resize, umr_ptr_rlky, xrc, ud, uc, rc, log_pg_sz, uar_sz, bf, log_bf_reg_size,
        max_wqe_sz_sq, max_wqe_sz_rq, log_max_pd, log_max_xrcd, log_max_rmp,
        basic_cyclic_rcv_wqe, log_max_wq_sz, max_qp_mcg, log_max_mcg, relaxed_ordering_write,
        relaxed_ordering_read, relaxed_ordering_write_umr, relaxed_ordering_read_umr, ats,
        max_num_eqs, num_of_uars_per_page,
    }
    odp_cap: OdpCap("odp_cap") {
        mem_page_fault,
        rc_send = "transport_page_fault_scheme_cap.rc_odp_caps.send",
        rc_receive = "transport_page_fault_scheme_cap.rc_odp_caps.receive",
        rc_write = "transport_page_fault_scheme_cap.rc_odp_caps.write",
        rc_read = "transport_page_fault_scheme_cap.rc_odp_caps.read",
        rc_atomic = "transport_page_fault_scheme_cap.rc_odp_caps.atomic",
        rc_srq = "transport_page_fault_scheme_cap.rc_odp_caps.srq_receive",
        ud_send = "transport_page_fault_scheme_cap.ud_odp_caps.send",
        mem_page_prefetch = "memory_page_fault_scheme_cap.page_prefetch",
        mem_rc_send = "memory_page_fault_scheme_cap.rc_odp_caps.send",
        mem_rc_receive = "memory_page_fault_scheme_cap.rc_odp_caps.receive",
        mem_rc_write = "memory_page_fault_scheme_cap.rc_odp_caps.write",
        mem_rc_read = "memory_page_fault_scheme_cap.rc_odp_caps.read",
        mem_rc_atomic = "memory_page_fault_scheme_cap.rc_odp_caps.atomic",
        mem_rc_srq = "memory_page_fault_scheme_cap.rc_odp_caps.srq_receive",
        mem_ud_send = "memory_page_fault_scheme_cap.ud_odp_caps.send",
    }
    atomic_caps: AtomicCaps("atomic_caps") {
        atomic_req_8b_endianness_mode = "atomic_req_8B_endianness_mode",
        supported_atomic_req_8b_endianness_mode_1 = "supported_atomic_req_8B_endianness_mode_1",
        atomic_operations, atomic_size_qp,
    }

    // Commands of the device as a whole.
    query_issi: QueryIssi("query_issi_out") { supported_issi_dw0 }
    query_pages: QueryPages("query_pages_out") { num_pages }
    manage_pages_in: ManagePagesIn("manage_pages_in") { input_num_entries, pas }
    manage_pages_out: ManagePagesOut("manage_pages_out") { output_num_entries, pas }
    query_hca_cap_out: QueryHcaCapOut("query_hca_cap_out") { capability }
    set_hca_cap_in: SetHcaCapIn("set_hca_cap_in") { capability }
    query_adapter: QueryAdapter("query_adapter_out") {
        ieee_vendor_id = "query_adapter_struct.ieee_vendor_id",
    }
    access_register_in: AccessRegisterIn("access_register_in") { register_id }
    access_register_out: AccessRegisterOut("access_register_out") { register_data }
    ptys: Ptys("ptys_reg") { ib_link_width_oper, ib_proto_oper }
    pmtu: Pmtu("pmtu_reg") { max_mtu, admin_mtu, oper_mtu }
    pvlc: Pvlc("pvlc_reg") { vl_hw_cap }
    mad_ifc_in: MadIfcIn("mad_ifc_in") { mad }
    mad_ifc_out: MadIfcOut("mad_ifc_out") { response_mad_packet }
    special_contexts: SpecialContexts("query_special_contexts_out") { resd_lkey, null_mkey }
    vport_context: VportContext("query_hca_vport_context_out") {
        vport_state = "hca_vport_context.vport_state",
        port_physical_state = "hca_vport_context.port_physical_state",
        port_guid = "hca_vport_context.port_guid",
        node_guid = "hca_vport_context.node_guid",
        system_image_guid = "hca_vport_context.system_image_guid",
        lid = "hca_vport_context.lid",
        sm_lid = "hca_vport_context.sm_lid",
        subnet_timeout = "hca_vport_context.subnet_timeout",
        cap_mask1 = "hca_vport_context.cap_mask1",
        cap_mask1_field_select = "hca_vport_context.cap_mask1_field_select",
    }
    modify_vport: ModifyVport("modify_hca_vport_context_in") {
        cap_mask1 = "hca_vport_context.cap_mask1",
        cap_mask1_field_select = "hca_vport_context.cap_mask1_field_select",
    }
    mcg: Mcg("attach_to_mcg_in") { qpn, multicast_gid }
    vport_gid_in: VportGidIn("query_hca_vport_gid_in") { gid_index }
    vport_gid_out: VportGidOut("query_hca_vport_gid_out") { gids_num, gid }
    vport_pkey_in: VportPkeyIn("query_hca_vport_pkey_in") { pkey_index }
    vport_pkey_out: VportPkeyOut("query_hca_vport_pkey_out") { pkey = "pkey.pkey" }

    // Commands of objects.
    alloc_pd: AllocPd("alloc_pd_out") { pd }
    dealloc_pd: DeallocPd("dealloc_pd_in") { pd }
    alloc_uar: AllocUar("alloc_uar_out") { uar }
    dealloc_uar: DeallocUar("dealloc_uar_in") { uar }
    alloc_xrcd: AllocXrcd("alloc_xrcd_out") { xrcd }
    dealloc_xrcd: DeallocXrcd("dealloc_xrcd_in") { xrcd }
    create_eq_in: CreateEqIn("create_eq_in") {
        event_bitmask, pas,
        log_eq_size = "eq_context_entry.log_eq_size",
        intr = "eq_context_entry.intr",
        log_page_size = "eq_context_entry.log_page_size",
        page_offset = "eq_context_entry.page_offset",
    }
    create_eq_out: CreateEqOut("create_eq_out") { eq_number }
    destroy_eq: DestroyEq("destroy_eq_in") { eq_number }
    create_cq_in: CreateCqIn("create_cq_in") { cq_context, pas }
    create_cq_out: CreateCqOut("create_cq_out") { cqn }
    query_cq_in: QueryCqIn("query_cq_in") { cqn }
    query_cq_out: QueryCqOut("query_cq_out") { cq_context }
    modify_cq: ModifyCq("modify_cq_in") { cqn, cq_context, pas }
    destroy_cq: DestroyCq("destroy_cq_in") { cqn }
    create_mkey_in: CreateMkeyIn("create_mkey_in") {
        context = "memory_key_mkey_entry", translations_octword_actual_size,
        translations = "klm_pas_mtt",
    }
    create_mkey_out: CreateMkeyOut("create_mkey_out") { mkey_index }
    query_mkey_in: QueryMkeyIn("query_mkey_in") { mkey_index }
    query_mkey_out: QueryMkeyOut("query_mkey_out") {
        context = "memory_key_mkey_entry", translations = "bsf0_klm0_pas_mtt0_1",
    }
    destroy_mkey: DestroyMkey("destroy_mkey_in") { mkey_index }
    resume: Resume("page_fault_resume_in") {
        error = "page_fault_info.trans_page_fault_info.error",
        token = "page_fault_info.trans_page_fault_info.fault_token",
        memory_error = "page_fault_info.mem_page_fault_info.error",
        token_31_0 = "page_fault_info.mem_page_fault_info.fault_token_31_0",
        token_47_32 = "page_fault_info.mem_page_fault_info.fault_token_47_32",
    }
    create_qp_in: CreateQpIn("create_qp_in") { qpc, pas }
    create_qp_out: CreateQpOut("create_qp_out") { qpn }
    // All transitions have these fields at the same offsets.
    modify_qp: ModifyQp("init2rtr_qp_in") { qpn, opt_param_mask, qpc }
    query_qp_in: QueryQpIn("query_qp_in") { qpn }
    query_qp_out: QueryQpOut("query_qp_out") { qpc }
    destroy_qp: DestroyQp("destroy_qp_in") { qpn }
    create_xrc_srq_in: CreateXrcSrqIn("create_xrc_srq_in") {
        context = "xrc_srq_context_entry", pas,
    }
    create_xrc_srq_out: CreateXrcSrqOut("create_xrc_srq_out") { xrc_srqn }
    query_xrc_srq_in: QueryXrcSrqIn("query_xrc_srq_in") { xrc_srqn }
    query_xrc_srq_out: QueryXrcSrqOut("query_xrc_srq_out") { lwm = "xrc_srq_context_entry.lwm" }
    arm_xrc_srq: ArmXrcSrq("arm_xrc_srq_in") { xrc_srqn, lwm }
    destroy_xrc_srq: DestroyXrcSrq("destroy_xrc_srq_in") { xrc_srqn }
    create_rmp_in: CreateRmpIn("create_rmp_in") { wq = "ctx.wq", pas = "ctx.wq.pas" }
    create_rmp_out: CreateRmpOut("create_rmp_out") { rmpn }
    query_rmp_in: QueryRmpIn("query_rmp_in") { rmpn }
    query_rmp_out: QueryRmpOut("query_rmp_out") { lwm = "rmp_context.wq.lwm" }
    modify_rmp: ModifyRmp("modify_rmp_in") { rmpn, lwm = "ctx.wq.lwm" }
    destroy_rmp: DestroyRmp("destroy_rmp_in") { rmpn }

    // Entries that the device writes.
    eqe: Eqe("mlx5_eqe") {
        kind = "type", sub_type, owner,
        comp_cqn = "data.comp.cqn",
        cq_err_cqn = "data.cq_err.cqn",
        cq_err_syndrome = "data.cq_err.syndrome",
        qp_srq_n = "data.qp_srq.qp_srq_n",
        cmd_vector = "data.cmd.vector",
        wqe_bytes_committed = "data.page_fault.wqe.bytes_committed",
        wqe_index = "data.page_fault.wqe.wqe_index",
        wqe_packet_length = "data.page_fault.wqe.packet_length",
        wqe_token = "data.page_fault.wqe.token",
        wqe_pftype_wq = "data.page_fault.wqe.pftype_wq",
        rdma_bytes_committed = "data.page_fault.rdma.bytes_committed",
        rdma_r_key = "data.page_fault.rdma.r_key",
        rdma_packet_length = "data.page_fault.rdma.packet_length",
        rdma_op_len = "data.page_fault.rdma.rdma_op_len",
        rdma_va = "data.page_fault.rdma.rdma_va",
        rdma_pftype_token = "data.page_fault.rdma.pftype_token",
        memory_flags = "data.page_fault.memory.flags",
        memory_token_47_32 = "data.page_fault.memory.token47_32",
        memory_token_31_0 = "data.page_fault.memory.token31_0",
        memory_pages = "data.page_fault.memory.demand_fault_pages",
        memory_mkey = "data.page_fault.memory.mkey",
        memory_va = "data.page_fault.memory.va",
    }
    cqe: Cqe("mlx5_cqe64") {
        flags_rqpn, srqn_uidx = "srqn", imm = "immediate", byte_cnt, sop_drop_qpn, wqe_counter,
        op_own, slid,
    }
    err_cqe: ErrCqe("mlx5_err_cqe") { syndrome, s_wqe_opcode_qpn }

    // Work requests.
    ctrl: Ctrl("mlx5_wqe_ctrl_seg") { opmod_idx_opcode, qpn_ds, fm_ce_se, imm }
    raddr: Raddr("mlx5_wqe_raddr_seg") { raddr, rkey }
    atomic: Atomic("mlx5_wqe_atomic_seg") { swap_add, compare }
    data: Data("mlx5_wqe_data_seg") { byte_count, lkey, addr }
    xrc: Xrc("mlx5_wqe_xrc_seg") { xrc_srqn }
    base_av: BaseAv("mlx5_base_av") { dqp_dct, rlid }
    av: Av("mlx5_av") {}
    srq_next: SrqNext("mlx5_wqe_srq_next_seg") { next_wqe_index }
    umr: UmrCtrl("mlx5_wqe_umr_ctrl_seg") {
        flags, xlt_octowords, xlt_offset, mkey_mask, xlt_offset_47_16,
    }
}

constants! {
    /// Opcodes of work requests.
    opcodes: Opcodes {
        nop = "MLX5_OPCODE_NOP",
        send_inval = "MLX5_OPCODE_SEND_INVAL",
        rdma_write = "MLX5_OPCODE_RDMA_WRITE",
        rdma_write_imm = "MLX5_OPCODE_RDMA_WRITE_IMM",
        send = "MLX5_OPCODE_SEND",
        send_imm = "MLX5_OPCODE_SEND_IMM",
        rdma_read = "MLX5_OPCODE_RDMA_READ",
        atomic_cs = "MLX5_OPCODE_ATOMIC_CS",
        atomic_fa = "MLX5_OPCODE_ATOMIC_FA",
        umr = "MLX5_OPCODE_UMR",
    }
    /// Types of events.
    events: EventTypes {
        comp = "MLX5_EVENT_TYPE_COMP",
        srq_rq_limit = "MLX5_EVENT_TYPE_SRQ_RQ_LIMIT",
        cq_error = "MLX5_EVENT_TYPE_CQ_ERROR",
        wq_access_error = "MLX5_EVENT_TYPE_WQ_ACCESS_ERROR",
        cmd = "MLX5_EVENT_TYPE_CMD",
        page_fault = "MLX5_EVENT_TYPE_PAGE_FAULT",
    }
    /// Kinds of page faults.
    pfault: Pfault {
        wqe = "MLX5_PFAULT_SUBTYPE_WQE",
        rdma = "MLX5_PFAULT_SUBTYPE_RDMA",
        memory = "MLX5_PFAULT_SUBTYPE_MEMORY",
        is_write = "MLX5_PFAULT_WRITE",
        is_rdma = "MLX5_PFAULT_RDMA",
        rmp = "MLX5_WQE_PF_TYPE_RMP",
        requester_send = "MLX5_WQE_PF_TYPE_REQ_SEND_OR_WRITE",
        responder = "MLX5_WQE_PF_TYPE_RESP",
        requester_read = "MLX5_WQE_PF_TYPE_REQ_READ_OR_ATOMIC",
    }
    /// Opcodes of completions.
    cqe: CqeOpcodes {
        req = "MLX5_CQE_REQ",
        resp_wr_imm = "MLX5_CQE_RESP_WR_IMM",
        resp_send = "MLX5_CQE_RESP_SEND",
        resp_send_imm = "MLX5_CQE_RESP_SEND_IMM",
        resp_send_inv = "MLX5_CQE_RESP_SEND_INV",
        req_err = "MLX5_CQE_REQ_ERR",
        resp_err = "MLX5_CQE_RESP_ERR",
        resize_cq = "MLX5_CQE_RESIZE_CQ",
    }
    /// Values of `syndrome` in a completion.
    syndromes: Syndromes {
        local_length_err = "MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR",
        local_qp_op_err = "MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR",
        local_prot_err = "MLX5_CQE_SYNDROME_LOCAL_PROT_ERR",
        wr_flush_err = "MLX5_CQE_SYNDROME_WR_FLUSH_ERR",
        mw_bind_err = "MLX5_CQE_SYNDROME_MW_BIND_ERR",
        remote_inval_req_err = "MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR",
        remote_access_err = "MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR",
        remote_op_err = "MLX5_CQE_SYNDROME_REMOTE_OP_ERR",
        transport_retry_exc_err = "MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR",
        rnr_retry_exc_err = "MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR",
        remote_aborted_err = "MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR",
    }
    /// Fields of a memory key that a work request changes.
    mkey_mask: MkeyMask {
        len = "MLX5_MKEY_MASK_LEN",
        page_size = "MLX5_MKEY_MASK_PAGE_SIZE",
        page_size_5 = "MLX5_MKEY_MASK_PAGE_SIZE_5",
        start_addr = "MLX5_MKEY_MASK_START_ADDR",
        pd = "MLX5_MKEY_MASK_PD",
        en_rinval = "MLX5_MKEY_MASK_EN_RINVAL",
        bsf_en = "MLX5_MKEY_MASK_BSF_EN",
        key = "MLX5_MKEY_MASK_KEY",
        qpn = "MLX5_MKEY_MASK_QPN",
        lr = "MLX5_MKEY_MASK_LR",
        lw = "MLX5_MKEY_MASK_LW",
        rr = "MLX5_MKEY_MASK_RR",
        rw = "MLX5_MKEY_MASK_RW",
        a = "MLX5_MKEY_MASK_A",
        small_fence = "MLX5_MKEY_MASK_SMALL_FENCE",
        relaxed_ordering_write = "MLX5_MKEY_MASK_RELAXED_ORDERING_WRITE",
        relaxed_ordering_read = "MLX5_MKEY_MASK_RELAXED_ORDERING_READ",
        free = "MLX5_MKEY_MASK_FREE",
    }
    /// Access modes of a memory key.
    mode: AccessMode {
        pa = "MLX5_MKC_ACCESS_MODE_PA",
        mtt = "MLX5_MKC_ACCESS_MODE_MTT",
        klms = "MLX5_MKC_ACCESS_MODE_KLMS",
        ksm = "MLX5_MKC_ACCESS_MODE_KSM",
    }
    /// Flags of a work request that changes a memory key.
    umr: Umr {
        translation_offset_en = "MLX5_UMR_TRANSLATION_OFFSET_EN",
        check_not_free = "MLX5_UMR_CHECK_NOT_FREE",
        check_free = "MLX5_UMR_CHECK_FREE",
        inline = "MLX5_UMR_INLINE",
    }
    /// States of a queue pair.
    qp_state: QpState {
        rst = "MLX5_QPC_STATE_RST",
        init = "MLX5_QPC_STATE_INIT",
        rtr = "MLX5_QPC_STATE_RTR",
        rts = "MLX5_QPC_STATE_RTS",
        err = "MLX5_QPC_STATE_ERR",
    }
    /// Service types of a queue pair.
    qp_st: QpService {
        rc = "MLX5_QPC_ST_RC",
        uc = "MLX5_QPC_ST_UC",
        ud = "MLX5_QPC_ST_UD",
        xrc = "MLX5_QPC_ST_XRC",
        qp0 = "MLX5_QPC_ST_QP0",
        qp1 = "MLX5_QPC_ST_QP1",
        reg_umr = "MLX5_QPC_ST_REG_UMR",
    }
    /// Bits of `opt_param_mask` of a queue pair.
    optpar: OptPar {
        rre = "MLX5_QP_OPTPAR_RRE",
        rae = "MLX5_QP_OPTPAR_RAE",
        rwe = "MLX5_QP_OPTPAR_RWE",
        pkey_index = "MLX5_QP_OPTPAR_PKEY_INDEX",
        q_key = "MLX5_QP_OPTPAR_Q_KEY",
        rnr_timeout = "MLX5_QP_OPTPAR_RNR_TIMEOUT",
        pm_state = "MLX5_QP_OPTPAR_PM_STATE",
        retry_count = "MLX5_QP_OPTPAR_RETRY_COUNT",
        rnr_retry = "MLX5_QP_OPTPAR_RNR_RETRY",
        ack_timeout = "MLX5_QP_OPTPAR_ACK_TIMEOUT",
    }
    /// Groups of capabilities.
    cap: CapGroups {
        general = "MLX5_CAP_GENERAL",
        odp = "MLX5_CAP_ODP",
        atomic = "MLX5_CAP_ATOMIC",
        current = "HCA_CAP_OPMOD_GET_CUR",
    }
    /// The purpose and the direction of page requests.
    pages: Pages {
        boot = "MLX5_QUERY_PAGES_IN_OP_MOD_BOOT_PAGES",
        init = "MLX5_QUERY_PAGES_IN_OP_MOD_INIT_PAGES",
        give = "MLX5_MANAGE_PAGES_IN_OP_MOD_ALLOCATION_SUCCESS",
        take = "MLX5_MANAGE_PAGES_IN_OP_MOD_HCA_RETURN_PAGES",
    }
    /// Registers that ACCESS_REG reads and writes.
    regs: Regs {
        pmtu = "MLX5_REG_PMTU",
        ptys = "MLX5_REG_PTYS",
        pvlc = "MLX5_REG_PVLC",
        node_desc = "MLX5_REG_NODE_DESC",
        host_endianness = "MLX5_REG_HOST_ENDIANNESS",
    }
    /// Why a command is refused.
    status: CommandStatus {
        bad_op = "MLX5_CMD_STAT_BAD_OP_ERR",
        bad_param = "MLX5_CMD_STAT_BAD_PARAM_ERR",
        bad_resource = "MLX5_CMD_STAT_BAD_RES_ERR",
        busy = "MLX5_CMD_STAT_RES_BUSY",
        bad_qp_state = "MLX5_CMD_STAT_BAD_QP_STATE_ERR",
        no_resources = "MLX5_CMD_STAT_NO_RES_ERR",
        bad_input_len = "MLX5_CMD_STAT_BAD_INP_LEN_ERR",
        outstanding = "MLX5_CMD_STAT_BAD_SIZE_OUTS_CQES_ERR",
        bad_output_len = "MLX5_CMD_STAT_BAD_OUTP_LEN_ERR",
    }
    /// Doorbells: pages of the BAR, and the registers in each page.
    uar: Uar {
        page_shift = "MLX5_ADAPTER_PAGE_SHIFT",
        cq = "MLX5_CQ_DOORBELL",
        cq_solicited = "MLX5_CQ_DB_REQ_NOT_SOL",
        blue_flame = "MLX5_BF_OFFSET",
        blue_flames = "MLX5_BFREGS_PER_UAR",
    }
    /// Other constants.
    misc: Misc {
        inline_seg = "MLX5_INLINE_SEG",
        inline_len = "MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK",
        extended_av = "MLX5_EXTENDED_UD_AV",
        opcode_mask = "MLX5_WQE_CTRL_OPCODE_MASK",
        qpn_shift = "MLX5_WQE_CTRL_QPN_SHIFT",
        cmd_block = "MLX5_CMD_DATA_BLOCK_SIZE",
        ds_mask = "MLX5_WQE_CTRL_DS_MASK",
        cq_update = "MLX5_WQE_CTRL_CQ_UPDATE",
        solicited = "MLX5_WQE_CTRL_SOLICITED",
        snd_dbr = "MLX5_SND_DBR",
        cq_resize = "MLX5_CQ_OPMOD_RESIZE",
        non_zero_rq = "MLX5_NON_ZERO_RQ",
        srq_rq = "MLX5_SRQ_RQ",
        interface_shift = "MLX5_NIC_IFC_OFFSET",
        interface_disabled = "MLX5_INITIAL_SEG_NIC_INTERFACE_DISABLED",
    }
}

"""The encodings of instructions, in the language of `encoding`: learnt from what nvdisasm says of single words."""

from __future__ import annotations

DOUBLE = """
02b/1234567  DFMA{*round@78}  Rd, -|Ra|, -|Rb:d|, -|Rc:d|
029/1237  DADD{*round@78}  Rd, -|Ra|, -|Rc:d|
028/1456  DMUL{*round@78}  Rd, -|Ra|, -|Rb:d|
02a/1237  DSETP{*dcompare@76}{*logic@74}  P81, P84, -|Ra|, -|Rs:d|, !P87
"""

TENSOR = """
03c/1  HMMA{.1688,.16816@75}{.F16,.F32@76}{,.BF16,.TF32,?@82}  Rd, Ra, Rb, Rc  78=0
03c/1  HMMA.1684{.F16,.F32@76}{,.BF16,.TF32,?@82}  Rd, Ra, Rb, Rc  78=1, 75=0
037/1  IMMA{.16816,.16832@75}{.U8,.S8@76}{.U8,.S8@78}{.SAT@82}  Rd, Ra.ROW, Rb.COL, Rc  86=1, 74=1
1f0/4  HGMMA<tile>{.F16,.F32@75}{,.BF16,.TF32,?@76}  Rd, <matrices24>, Rc, <accumulate>, <group>  91=1
1f0/6  HGMMA<tile>{.F16,.F32@75}{,.BF16,.TF32,?@76}  Rd, Ra, <matrix32>, Rc, <accumulate>, <group>  91=1
1c5/4  WARPGROUP{.ARRIVE,.WAIT@79}
1c5/4  WARPGROUP.DEPBAR.LE  gsb0, 0x72:3  47=1, 79:2=2
03f/1  DMMA{.8x8x4,.16x8x4,.16x8x8,.16x8x16@76}{*round@78}  Rd, -|Ra|, -|Rb|, -|Rc|
03b/4  LDSM.16{.M88,.MT88@78}{,.2,.4,?@72}  Rd, <tile32>
044/4  STSM.16{.M88,.MT88@78}{,.2,.4,?@72}  <tile64>, R32
"""

FLOATING = """
# 32-bit floats
023/1234567  FFMA{*denormal@80,76}{*round@78}{.SAT@77}  Rd, -|Ra|, -|Rb:f|, -|Rc:f|
021/1237  FADD{.FTZ@80}{*round@78}{.SAT@77}  Rd, -|Ra|, -|Rs:f|
020/1456  FMUL{*denormal@80,76}{?,.D8,.D4,.D2,,.M2,.M4,.M8@84}{*round@78}{.SAT@77}  Rd, -|Ra|, -|Rb:f|
009/1456  FMNMX{.FTZ@80}{.NAN@81}{.XORSIGN@82}  Rd, -|Ra|, -|Rb:f|, !P87
00b/1456  FSETP{*fcompare@76}{.FTZ@80}{*logic@74}  P81, P84, -|Ra|, -|Rb:f|, !P87
008/1456  FSEL{.FTZ@80}  Rd, -|Ra|, -|Rb:f|, !P87
102/1456  FCHK  P81, -|Ra|, -|Rb:f|
105/1456  F2I{.FTZ@80}{.U8,.S8,.U16,.S16,.U32,@72,75:2}{*towards@78}{.NTZ@77}  Rd, -|Rb:f|  84:3=2
106/156  I2F{*single@75}{.U32,@74}{*round@78}  Rd, Rb  84:2=2
106/1  I2F{*single@75}{.U8,.S8@74}{*round@78}  Rd, <byte32>  84:2=0
106/4  I2F{*single@75}{*round@78}  Rd, Rb:i  84:2=2, 74=1
106/4  I2F{*single@75}.U32{*round@78}  Rd, Rb  84:2=2, 74=0
106/16  I2F{*single@75}{.U16,.S16@74}{*round@78}  Rd, Rb  84:2=1
105/16  F2I{.FTZ@80}{.U8,.S8,.U16,.S16,.U32,@72,75:2}.F16{*towards@78}{.NTZ@77}  Rd, -|Rb|  84:3=1
107/1456  FRND{.FTZ@80}{*towards@78}  Rd, -|Rb:f|  75:3=2, 84:3=2
113/1456  FRND{.FTZ@80}.F64{*towards@78}  Rd, -|Rb:d|  75:3=3, 84:3=3
110/16  F2F{.FTZ@80}{*floats@75}{*floats@84}{*round@78}  Rd, -|Rb|
111/16  F2I{.FTZ@80}{*integers@72,75:2}{*float@84}{*towards@78}{.NTZ@77}  Rd, -|Rb|
112/5  I2F{*float@75}{.U32,@74}{*round@78}  Rd, Rb  84:2=2
112/16  I2F{*float@75}{*integers@74,84:2}{*round@78}  Rd, Rb
045/156  I2FP.F32{.U32,.S32@74}{,?,?,.RZ@78}  Rd, Rb  75:3=2, 85=1
045/4  I2FP.F32.S32{,?,?,.RZ@78}  Rd, Rb:i  75:3=2, 85=1, 74=1
108/156  MUFU{*function@74}  Rd, -|Rb|
108/16  MUFU{*single_function@74}.F16  Rd, -|Rb|  72=1
108/4  MUFU{*single_function@74}  Rd, Rb:f
"""

INTEGER = """
010/1456  IADD3  Rd, P81?, P84?, -Ra, -Rb:i, -Rc  74=0, 77:4=15, 87:4=15
010/1456  IADD3.X  Rd, P81?, P84?, ~Ra, ~Rb:i, ~Rc, !P87, !P77  74=1
024/1234567  IMAD<multiply-add>{.U32,@73}  Rd, Ra, Rb:i, -Rc:i  74=0, 81:3=7, 87:4=15
024/1234567  IMAD{.U32,@73}.X  Rd, Ra, Rb:i, ~Rc:i, !P87  74=1, 81:3=7
025/134567  IMAD.WIDE{.U32,@73}  Rd, P81?, Ra, Rb:i, -Rc:i  74=0, 87:4=15
025/134567  IMAD.WIDE{.U32,@73}.X  Rd, P81?, Ra, Rb:i, ~Rc, !P87  74=1
027/134567  IMAD.HI{.U32,@73}  Rd, P81?, Ra, Rb:i, -Rc:i  74=0, 87:4=15
011/1456  LEA  Rd, P81?, -Ra, -Rb, 0x75:5  80=0, 74=0, 64:8=255, 87:4=15
011/1456  LEA.X  Rd, P81?, ~Ra, ~Rb, 0x75:5, !P87  80=0, 74=1, 64:8=255
011/1456  LEA.HI  Rd, P81?, -Ra, -Rb, Rc, 0x75:5  80=1, 74=0, 87:4=15
011/1456  LEA.HI.X  Rd, P81?, ~Ra, ~Rb, Rc, 0x75:5, !P87  80=1, 74=1
011/1456  LEA.HI.X.SX32  Rd, P81?, ~Ra, ~Rb, 0x75:5, !P87  80=1, 73=1, 74=1, 64:8=255
011/1456  LEA.HI.SX32  Rd, P81?, -Ra, -Rb, 0x75:5  80=1, 73=1, 74=0, 64:8=255, 87:4=15
012/1456  LOP3.LUT{.PAND@80}  P81?, Rd, Ra, Rb, Rc, 0x72:8, !P87
019/1234567  SHF{.L,.R@76}{.W@75}{.S64,.U64,.S32,.U32@73}{.HI@80}  Rd, Ra, Rb, Rc
00c/1456  ISETP{*compare@76}{.U32,@73}{*logic@74}  P81, P84, Ra, Rb:i, !P87  72=0, 68:4=7
00c/1456  ISETP{*compare@76}{.U32,@73}{*logic@74}.EX  P81, P84, Ra, Rb:i, !P87, !P68  72=1
002/1456  MOV  Rd, Rb  72:4=15
002/1456  MOV  Rd, Rb, 0x72:4
007/1456  SEL  Rd, Ra, Rb, !P87
036/1456  VIADD{.16x2@73}  Rd, Ra, -Rb
046/1234567  VIADDMNMX{.U32,,.U16x2,.S16x2@72}{.RELU@76}  Rd, Ra, -Rb, Rc, !P87
048/1456  VIMNMX{.U32,,.U16x2,.S16x2@72}{.RELU@76}  Rd, Ra, Rb:i, !P87  81:3=7, 84:3=7
01c/4  PLOP3.LUT  P81, P84, !P87, !P77, !P68, <table>, 0x16:8
01c/4  PLOP3.LUT  P81, P84, !P87, !P77, !UP68, <table>, 0x16:8  67=1
100/1456  FLO{.U32,@73}{.SH@74}  Rd, P81?, ~Rb
101/1456  BREV  Rd, Rb
109/1456  POPC  Rd, ~Rb
013/1456  IABS  Rd, Rb:i
016/1234567  PRMT{,.F4E,.B4E,.RC8,.ECL,.ECR,.RC16,?@72}  Rd, Ra, Rb, Rc
01a/1456  SGXT{.W@75}{.U32,@73}  Rd, Ra, Rb
026/15  IDP{.4A,.2A.LO,?,.2A.HI@76}{.U8,.S8@73}{.U8,.S8@74}  Rd, Ra, Rb, -Rc  76=0
026/15  IDP{.4A,.2A.LO,?,.2A.HI@76}{.U16,.S16@73}{.U8,.S8@74}  Rd, Ra, Rb, -Rc  76=1
014/1234567  VABSDIFF{.U32,@73}  Rd, P81?, Ra, Rb, Rc
015/1234567  VABSDIFF4.U8{.ACC@75}  Rd, P81?, Ra, Rb, Rc
00f/1456  VIMNMX3{.U32,,.U16x2,.S16x2@72}{.RELU@76}  Rd, Ra, Rb, Rc, !P87
038/1456  I2I{.U8,.S8,.U16,.S16@76}.S32.SAT  Rd, Rb:i
003/4  P2R{,.B1,.B2,.B3@76}  Rd, PR, Ra, Rb
"""

HALF = """
035/1234567  HFMA2.MMA{*denormal@80,76}{.SAT@77}  Rd, -|Ra|, -|Rb:h|, -|Rc:h|  85=0
035/1234567  HFMA2.MMA.BF16_V2{*denormal@80,76}{.SAT@77}  Rd, -|Ra|, -|Rb:b|, -|Rc:b|  85=1
031/1234567  HFMA2{*denormal@80,76}{.SAT@77}  Rd, -|Ra:H|, -|Rb:H|, -|Rc:H|  85=0
031/1234567  HFMA2.BF16_V2{*denormal@80,76}{.SAT@77}  Rd, -|Ra:B|, -|Rb:B|, -|Rc:B|  85=1
030/1237  HADD2{.FTZ@80}{.SAT@77}  Rd, -|Ra:H|, -|Rs:H|  78=0, 85=0
030/1237  HADD2.BF16_V2{.FTZ@80}{.SAT@77}  Rd, -|Ra:B|, -|Rs:B|  78=0, 85=1
030/137  HADD2.F32{.FTZ@80}{.SAT@77}  Rd, -Ra:H, -|Rs:H|  78=1, 85=0
032/1456  HMUL2{*denormal@80,76}{.SAT@77}  Rd, -|Ra:H|, -|Rb:H|  85=0
032/1456  HMUL2.BF16_V2{*denormal@80,76}{.SAT@77}  Rd, -|Ra:B|, -|Rb:B|  85=1
040/1456  HMNMX2{.FTZ@80}{.NAN@81}{.XORSIGN@82}  Rd, -|Ra:H|, -|Rb:H|, !P87  85=0
040/1456  HMNMX2.BF16_V2{.FTZ@80}{.NAN@81}{.XORSIGN@82}  Rd, -|Ra:B|, -|Rb:B|, !P87  85=1
035/1  HFMA2.MMA{*denormal@80,76}.RELU  Rd, -|Ra|, -|Rb:h|, -|Rc:h|  85=0, 79=1, 87:4=7
035/1  HFMA2.MMA.BF16_V2{*denormal@80,76}.RELU  Rd, -|Ra|, -|Rb:b|, -|Rc:b|  85=1, 79=1, 87:4=7
033/2  HSET2{?,.BF@71}{*fcompare@76}{.FTZ@80}{*logic@69}  Rd, -|Ra:H|, Rs:h, !P87  65=0
034/2  HSETP2{*fcompare@76}{.FTZ@80}{*logic@69}  P81, P84, -|Ra:H|, Rs:h, !P87  65=0
034/2  HSETP2.BF16_V2{*fcompare@76}{.FTZ@80}{*logic@69}  P81, P84, -|Ra:B|, Rs:b, !P87  65=1
033/137  HSET2{?,.BF@71}{*fcompare@76}{.FTZ@80}{*logic@69}  Rd, -|Ra:H|, -|Rs:H|, !P87  65=0
034/137  HSETP2{*fcompare@76}{.FTZ@80}{*logic@69}  P81, P84, -|Ra:H|, -|Rs:H|, !P87  65=0
034/137  HSETP2.BF16_V2{*fcompare@76}{.FTZ@80}{*logic@69}  P81, P84, -|Ra:B|, -|Rs:B|, !P87  65=1
047/156  VHMNMX{.FTZ@80}{.NAN@81}{.XORSIGN@82}  Rd, -|Ra:H|, -|Rb:H|, <half64>, !P87  85=0
047/156  VHMNMX.BF16_V2{.FTZ@80}{.NAN@81}{.XORSIGN@82}  Rd, -|Ra:B|, -|Rb:B|, <half64>, !P87  85=1
03e/1456  F2FP{.RELU@75}{.F16,.BF16@76}.F32.PACK_AB  Rd, Ra, Rb:f  64:8=255
"""

MEMORY = """
181/4  LDG.E{*evict@84}{*ahead@68}{*size@73}{*load@77}  P81?, Rd, <global32>  72=1, 76=1, 90:2=3
186/4  STG.E{*evict@84}{*size@73}{*store@77}  <global64>, R32  72=1, 76=1, 90:2=3
1a6/4  REDG.E{.ADD,.MIN,.MAX,?@88}{*evict@84}{*added@73}{*store@77}  <global64>, R32  72=1, 71=1, 90:2=3
18e/4  REDG.E{*operation@87}{*evict@84}{*integer@73}{*store@77}  <global64>, R32  72=1, 71=1, 90:2=3
1a8/4  ATOMG.E{*atomic@87}{*evict@84}{*integer@73}{*store@77}  P81, Rd, <global64>, R32  72=1, 70:2=3, 91=1
1a3/4  ATOMG.E{.ADD,.MIN,.MAX,?@88}{*evict@84}{*added@73}{*store@77}  P81, Rd, <global64>, R32  72=1, 70:2=3, 91=1
1a9/1  ATOMG.E.CAS{*evict@84}{*swapped@73}{*store@77}  P81, Rd, <plain>, R32, R64  72=1
18d/1  ATOMS.CAS{*swapped@73}  Rd, <shared>, R32, R64  87:2=0
18d/1  ATOMS.CAST.SPIN{*swapped@73}  Rd, <shared>, R32, R64  87:2=3
18c/4  ATOMS{*exchange@87}{*swapped@73}  Rd, <shared64>, R32  91=1
18c/1  ATOMS{*exchange@87}{*swapped@73}  Rd, <shared>, R32
18c/7  ATOMS.POPC.INC.32  Rd, <shared64>  91=1, 87:4=11
18a/4  ATOM.E{*exchange@87}{*evict@84}{*integer@73}{*store@77}  P81, Rd, <global64>, R32  72=1, 70:2=3, 91=1
1a2/4  ATOM.E{.ADD,.MIN,.MAX,?@88}{*evict@84}{*packed@73}{*store@77}  P81, Rd, <global64>, R32  72=1, 70:2=3, 91=1
180/4  LD.E{*evict@84}{*ahead@68}{*size@73}{*store@77}  Rd, <global32>  72=1, 76=1, 90:2=3
180/4  LD.E{*evict@84}{*ahead@68}{*size@73}{*store@77}  Rd, <window32>  72=1, 91=1
185/4  ST.E{*evict@84}{*size@73}{*store@77}  <global64>, R32  72=1, 76=1, 90:2=3
185/4  ST.E{*evict@84}{*size@73}{*store@77}  <window64>, R32  72=1, 91=1
18f/4  CCTL.E{.PF1,.PF2,.WB,.IV,?,.RS,?,?,?,.PML2,.DML2,.RML2,?,?,?,?@87}  [R24]  72=1
1aa/1  QSPC{.E@72}{.G,.L,.S,.D@73}  P81, Rd, <plain>
183/4  LDL{*evict@84}{*size@73}  Rd, <local>
187/1  STL{*evict@84}{*size@73}  <local>, R32
184/4  LDS{*size@73}  Rd, <shared32>
188/1  STS{*size@73}  <shared>, R32
188/4  STS{*size@73}  <shared64>, R32
182/5  LDC{.U8,.S8,.U16,.S16,,.64,?,?@73}{,.IL,.IS,.ISL@78}  Rd, <constant>
189/1  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, Rb, Rc
189/2  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, R32, 0x40:13
189/4  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, 0x53:5, R64
189/7  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, 0x53:5, 0x40:13
"""

CONTROL = """
11d/5  BAR.SYNC{.DEFER_BLOCKING@80}  0x54:4
11d/5  BAR.SYNC{.DEFER_BLOCKING@80}  0x54:4, 0x42:12
11d/2  BAR.SYNC{.DEFER_BLOCKING@80}  R32
11d/5  BAR.ARV  0x54:4, 0x42:12  77:2=1
11d/5  BAR.RED{.POPC,.AND,.OR,?@74}{.DEFER_BLOCKING@80}  0x54:4, !P87  77:2=2
147/4  BRA{,.INC,.DEC,?@85}{,.U,.DIV,.CONV@32}  !P87?T, <branch>
147/4  BRA{,.INC,.DEC,?@85}.U.ANY  !P87?T, <branch>  32:2=1, 84=1
147/4  BRA.DIV  !P87?T, <mask24>, <branch>  91=1, 32:2=2
145/4  BSSY  !P87?T, <barrier>, <meeting>
141/4  BSYNC  !P87?T, <barrier>
144/4  CALL.REL{,.NOINC@86}  !P87?T, <branch>
144/1  CALL.REL{,.NOINC@86}  !P87?T, <return>
150/4  RET.REL{,.NODEC@86}  !P87?T, <return>
11b/4  ENDCOLLECTIVE  !P87?T
14d/4  EXIT{,.KEEPREFCOUNT,.PREEMPTED,?@84}{.NO_ATEXIT@86}  !P87?T
118/4  NOP
02d/4  PREEXIT
02e/4  ACQBULK
02f/4  ELECT  P81, UR16, !P87
086/4  VOTEU{.ALL,.ANY,.EQ,?@72}  UP81, !P87  16:6=63
086/4  VOTEU{.ALL,.ANY,.EQ,?@72}  UR16, UP81, !P87
006/4  VOTE{.ALL,.ANY,.EQ,?@72}  P81, !P87  16:8=255
006/4  VOTE{.ALL,.ANY,.EQ,?@72}  Rd, P81, !P87
1a1/1  MATCH.ANY{.U64@73}  Rd, Ra  79=1, 81:3=7
1a1/1  MATCH.ALL{.U64@73}  P81, Rd, Ra
11a/4  DEPBAR.LE  <scoreboard>, 0x38:6  47=1
1af/4  LDGDEPBAR
15c/4  BPT.TRAP  0x1  34:3=1, 84:3=3
15d/14  NANOSLEEP  !P87?T, Rb
149/4  BRX{,.INC,.DEC,?@85}  !P87?T, <jump>
11c/1  B2R.RESULT  Rd, P81?  78:2=1
148/4  WARPSYNC.ALL  87:4=7
1ab/4  ERRBAR
1ab/2  CGAERRBAR
192/4  MEMBAR{.SC,.ALL@79}{.CTA,.SM,.GPU,.SYS,?,.VC,?,?@76}
18f/4  CCTL{,.U,.C,.I@78}.IVALL  24:8=255, 87:4=4
148/1  WARPSYNC.COLLECTIVE  !P87?T, R24, <branch>  86=1
148/1  WARPSYNC{,.EXCLUSIVE@85}  !P87?T, R24
005/4  CS2R{.32,@80}  Rd, <special>
119/4  S2R  Rd, <special>
1c4/1  REDUX{,.OR,.XOR,.SUM,.MIN,.MAX,?,?@78}{.S32@73}  UR16, Ra
1c3/4u  S2UR  UR16, <special>
"""

UNIFORM = """
097/14u  UIADD3.64  UR16, UP81?, UP84?, -UR24, -URb:i, -URc  74=0, 91=1, 77:4=15, 87:4=15
097/14u  UIADD3.64.X  UR16, UP81?, UP84?, ~UR24, ~URb:i, ~URc, !UP87, !UP77  74=1, 91=1
09a/14u  USGXT{.W@75}{.U32,@73}  UR16, UR24, URb  91=1
090/14u  UIADD3  UR16, UP81?, UP84?, -UR24, -URb:i, -URc  74=0, 91=1, 77:4=15, 87:4=15
090/14u  UIADD3.X  UR16, UP81?, UP84?, ~UR24, ~URb:i, ~URc, !UP87, !UP77  74=1, 91=1
091/14u  ULEA  UR16, UP81?, -UR24, -URb, 0x75:5  91=1, 74=0, 80=0, 64:8=63, 87:4=15
091/14u  ULEA.HI  UR16, UP81?, -UR24, -URb, URc, 0x75:5  91=1, 74=0, 80=1, 87:4=15
091/14u  ULEA.HI.X  UR16, UP81?, ~UR24, ~URb, URc, 0x75:5, !UP87  91=1, 74=1, 80=1
091/14u  ULEA.HI.X.SX32  UR16, UP81?, ~UR24, ~URb, 0x75:5, !UP87  91=1, 73=1, 74=1, 80=1, 64:8=63
0bd/14u  UFLO{.U32,@73}{.SH@74}  UR16, UP81?, ~URb  91=1
0bf/14u  UPOPC  UR16, ~URb  91=1
096/14u  UPRMT  UR16, UR24, URb, URc  91=1
087/14u  USEL  UR16, UR24, URb, !UP87  91=1
0a5/14u  UIMAD.WIDE{.U32,@73}  UR16, UP81?, UR24, URb:i, -URc  91=1, 74=0, 87:4=15
0ca/1  R2UR  P81?, UR16, Ra  84=0
0ca/1  R2UR.OR  P81, UR16, Ra  84=1
0a4/14u  UIMAD{.U32,@73}  UR16, UR24, URb:i, -URc  91=1, 74=0, 81:3=7, 87:4=15
08c/14u  UISETP{*compare@76}{.U32,@73}{*logic@74}  UP81, UP84, UR24, URb:i, !UP87  72=0, 91=1, 68:4=7
092/14u  ULOP3.LUT{.PAND@80}  UP81?, UR16, UR24, URb, URc, 0x72:8, !UP87  91=1
099/124u  USHF{.L,.R@76}{.W@75}{.S64,.U64,.S32,.U32@73}{.HI@80}  UR16, UR24, URb, URc  91=1
0b9/5u  ULDC{.U8,.S8,.U16,.S16,,.64,?,?@73}  UR16, <bank>
082/46u  UMOV  UR16, URb
"""

ASYNCHRONOUS = """
# Copies and barriers of Hopper's asynchronous engines
1b5/1u  UTMASTG{.1D,.2D,.3D,.4D@79}  [UR32], [UR24]  91=1
1b4/2u  UTMALDG{.1D,.2D,.3D,.4D@79}  [UR32], [UR24]  91=1
1ba/1u  UBLKCP{.G.G,.S.G,.G.S,.S.S@73}  [UR32], [UR24], UR64  91=1
1bb/1u  UBLKRED.G.S{.ADD,.MIN,.MAX,.INC,.DEC,.AND,.OR,.XOR@87}{*reduced@81}  [UR32], [UR24], UR64  91=1, 73:2=2
1b7/4u  UTMACMDFLUSH
1b9/4u  UTMACCTL{.IV,.PF@82}  [UR24]  91=1
1c7/4u  UCGABAR_ARV  91=1
1c7/6u  UCGABAR_WAIT  91=1
1a7/4  SYNCS.ARRIVE.TRANS64{,.A1T0,.A0T1,.A0TR,.A0TX,.ART0,?,?@84}  Rd, <tile64>, R32  91=1
1b2/2u  SYNCS.EXCH.64  UR16, <uniform24>, UR32  91=1, 72=1
1ae/7  LDGSTS.E{.BYPASS,@81}{*evict@84}{*ahead@71}{*wide@73}{.ZFILL@82}  <staged>, <global12>, !P87?T  70=1, 76=1, 91=1
1c6/1  FENCE.VIEW.ASYNC{.S,.G@72}
1a7/2  SYNCS.PHASECHK.TRANS64{.TRYWAIT@72}  P81, <tile64>, R32  91=1, 70:2=1
"""

AMPERE = """
# Where Ampere differs: these rows stand for all the rows of their opcodes
003/4  P2R{,.B1,.B2,.B3@76}  Rd, PR, Ra, Rb:i
009/1456  FMNMX{.FTZ@80}{.NAN@81}  Rd, -|Ra|, -|Rb:f|, !P87
030/1237  HADD2{.FTZ@80}{.SAT@77}  Rd, -|Ra:H|, -|Rs:H|  78=0, 85=0
030/137  HADD2.F32{.FTZ@80}{.SAT@77}  Rd, -Ra:H, -|Rs:H|  78=1, 85=0
032/1456  HMUL2{*denormal@80,76}{.SAT@77}  Rd, -|Ra:H|, -|Rb:H|  85=0
034/2  HSETP2{*fcompare@76}{.FTZ@80}{*logic@69}  P81, P84, -|Ra:H|, Rs:h, !P87  65=0
034/137  HSETP2{*fcompare@76}{.FTZ@80}{*logic@69}  P81, P84, -|Ra:H|, -|Rs:H|, !P87  65=0
035/1234567  HFMA2.MMA{*denormal@80,76}{.SAT@77}  Rd, -|Ra|, -|Rb:h|, -|Rc:h|  85=0
035/1  HFMA2.MMA{*denormal@80,76}.RELU  Rd, -|Ra|, -|Rb:h|, -|Rc:h|  85=0, 79=1, 87:4=7
040/1456  HMNMX2{.FTZ@80}{.NAN@81}  Rd, -|Ra:H|, -|Rb:H|, !P87  85=0
040/1456  HMNMX2.BF16_V2{.FTZ@80}{.NAN@81}  Rd, -|Ra:B|, -|Rb:B|, !P87  85=1
106/156  I2F{*half@75}{.U32,@74}{*round@78}  Rd, Rb  84:2=2
106/1  I2F{*half@75}{.U8,.S8@74}{*round@78}  Rd, <byte32>  84:2=0
106/4  I2F{*half@75}{*round@78}  Rd, Rb:i  84:2=2, 74=1
106/4  I2F{*half@75}.U32{*round@78}  Rd, Rb  84:2=2, 74=0
106/16  I2F{*half@75}{.U16,.S16@74}{*round@78}  Rd, Rb  84:2=1
108/156  MUFU{*function@74}  Rd, -|Rb|
108/4  MUFU{*single_function@74}  Rd, Rb:f
144/4  CALL.REL{,.NOINC@86}  !P87?T, <far>
144/1  CALL.REL{,.NOINC@86}  !P87?T, <farreturn>
147/4  BRA{,.INC,.DEC,?@85}{,.U,.DIV,.CONV@32}  !P87?T, <far>
147/4  BRA.DIV  !P87?T, <mask24>, <far>  91=1, 32:2=2
150/4  RET.REL{,.NODEC@86}  !P87?T, <farreturn>
149/4  BRX{,.INC,.DEC,?@85}  !P87?T, <farjump>
148/1  WARPSYNC  !P87?T, R32
148/4  WARPSYNC  !P87?T, Rb
1c2/1  R2UR  UR16, Ra  81:3=7
180/4  LD.E{*evict@84}{*ahead@68}{*size@73}{*store@77}  Rd, <wide32>  72=1, 76=1, 90:2=3
181/4  LDG.E{*evict@84}{*ahead@68}{*size@73}{*load@77}  P81?, Rd, <wide32>  72=1, 76=1, 90:2=3
185/4  ST.E{*evict@84}{*size@73}{*store@77}  <wide64>, R32  72=1, 76=1, 90:2=3
186/4  STG.E{*evict@84}{*size@73}{*store@77}  <wide64>, R32  72=1, 76=1, 90:2=3
18a/4  ATOM.E{*exchange@87}{*evict@84}{*any@73}{*store@77}  P81, Rd, <wide64>, R32  72=1, 70:2=3, 91=1
18e/4  RED.E{*operation@87}{*evict@84}{*any@73}{*store@77}  <wide64>, R32  72=1, 71=1, 90:2=3
1a8/4  ATOMG.E{*atomic@87}{*evict@84}{*any@73}{*store@77}  P81, Rd, <wide64>, R32  72=1, 70:2=3, 91=1
1ae/7  LDGSTS.E{.BYPASS,@81}{*evict@84}{*ahead@71}{*wide@73}{.ZFILL@82}  <staged>, <wide12>, !P87?T  70=1, 76=1, 91=1
017/1456  IMNMX{.U32,@73}  Rd, Ra, Rb:i, !P87
03f/1  DMMA.884{*round@78}  Rd, -|Ra|, -|Rb|, -|Rc|
1aa/1  QSPC{.E@72}{.G,.L,.S,?@73}  P81, Rd, <plain>
03e/1456  F2FP{.RELU@75}{.BF16@76}.PACK_AB  Rd, Ra, Rb:f  64:8=255
"""

COMMON = (ASYNCHRONOUS, FLOATING, DOUBLE, TENSOR, HALF, INTEGER, MEMORY, CONTROL, UNIFORM)

"""The encodings of instructions, in the language of `encoding`: learnt from what nvdisasm says of single words."""

from __future__ import annotations

FLOATING = """
# 32-bit floats
023/1234567  FFMA{.FTZ@80}{.FMZ@76}{*round@78}{.SAT@77}  Rd, -|Ra|, -|Rb:f|, -|Rc:f|
021/1237  FADD{.FTZ@80}{*round@78}{.SAT@77}  Rd, -|Ra|, -|Rs:f|
020/1456  FMUL{.FTZ@80}{.FMZ@76}{?,.D8,.D4,.D2,,.M2,.M4,.M8@84}{*round@78}{.SAT@77}  Rd, -|Ra|, -|Rb:f|
009/1456  FMNMX{.FTZ@80}{.NAN@81}{.XORSIGN@82}  Rd, -|Ra|, -|Rb:f|, !P87
00b/1456  FSETP{*fcompare@76}{.FTZ@80}{*logic@74}  P81, P84, -|Ra|, -|Rb:f|, !P87
008/1456  FSEL{.FTZ@80}  Rd, -|Ra|, -|Rb:f|, !P87
108/1456  MUFU{.COS,.SIN,.EX2,.LG2,.RCP,.RSQ,.RCP64H,.RSQ64H,.SQRT,.TANH,?,?,?,?,?,?@74}{,.F16,?,?@72}  Rd, -|Rb:f|
"""

INTEGER = """
010/1456  IADD3  Rd, P81?, P84?, -Ra, -Rb:i, -Rc  74=0, 77:4=15, 87:4=15
010/1456  IADD3.X  Rd, P81?, P84?, ~Ra, ~Rb:i, ~Rc, !P87, !P77  74=1
024/1234567  IMAD<multiply-add>{.U32,@73}  Rd, Ra, Rb:i, -Rc:i  74=0, 81:3=7, 87:4=15
024/1234567  IMAD{.U32,@73}.X  Rd, Ra, Rb:i, ~Rc:i, !P87  74=1, 81:3=7
025/1234567  IMAD.WIDE{.U32,@73}  Rd, P81?, Ra, Rb:i, -Rc:i  74=0, 87:4=15
025/1234567  IMAD.WIDE{.U32,@73}.X  Rd, P81?, Ra, Rb:i, ~Rc, !P87  74=1
027/1234567  IMAD.HI{.U32,@73}  Rd, P81?, Ra, Rb:i, -Rc:i  74=0, 87:4=15
011/1456  LEA  Rd, P81?, -Ra, -Rb, 0x75:5  80=0, 74=0, 64:8=255, 87:4=15
011/1456  LEA.X  Rd, P81?, ~Ra, -Rb, 0x75:5, !P87  80=0, 74=1, 64:8=255
011/1456  LEA.HI  Rd, P81?, -Ra, -Rb, Rc, 0x75:5  80=1, 74=0, 87:4=15
011/1456  LEA.HI.X  Rd, P81?, ~Ra, -Rb, Rc, 0x75:5, !P87  80=1, 74=1
011/1456  LEA.HI.X.SX32  Rd, P81?, ~Ra, -Rb, 0x75:5, !P87  80=1, 73=1, 74=1, 64:8=255
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
003/4  P2R{,.B1,.B2,.B3@76}  Rd, PR, Ra, Rb
"""

HALF = """
035/1234567  HFMA2.MMA{.FTZ@80}{.FMZ@76}{.SAT@77}  Rd, -|Ra|, -|Rb:h|, -|Rc:h|
"""

MEMORY = """
181/4  LDG.E{*evict@84}{*ahead@68}{*size@73}{*load@77}  P81?, Rd, <global32>  72=1, 76=1, 90:2=3
186/4  STG.E{*evict@84}{*size@73}{*store@77}  <global64>, R32  72=1, 76=1, 90:2=3
1a6/4  REDG.E{.ADD,.MIN,.MAX,?@88}{*evict@84}{*added@73}{*store@77}  <global64>, R32  72=1, 71=1, 90:2=3
183/4  LDL{*evict@84}{*size@73}  Rd, <local>
187/1  STL{*evict@84}{*size@73}  <local>, R32
184/4  LDS{*size@73}  Rd, <shared32>
188/1  STS{*size@73}  <shared>, R32
188/4  STS{*size@73}  <shared64>, R32
182/5  LDC{*size@73}{,.IL,.IS,.ISL@78}  Rd, <constant>
189/1  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, Rb, Rc
189/2  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, R32, 0x40:13
189/4  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, 0x53:5, R64
189/7  SHFL{.IDX,.UP,.DOWN,.BFLY@58}  P81, Rd, Ra, 0x53:5, 0x40:13
"""

CONTROL = """
11d/5  BAR{.SYNC,.ARV,?,?@77}{,.DEFER_BLOCKING@80}  0x54:4
147/4  BRA{,.U,.DIV,.CONV@32}{,.INC,.DEC,?@85}  !P87?T, <branch>
147/4  BRA.DIV  !P87?T, UR24, <branch>  91=1, 32:2=2
145/4  BSSY  !P87?T, <barrier>, <meeting>
141/4  BSYNC  !P87?T, <barrier>
144/4  CALL.REL{,.NOINC@86}  !P87?T, <branch>
144/1  CALL.REL{,.NOINC@86}  !P87?T, <call>
150/4  RET.REL{,.NODEC@86}  !P87?T, <return>
11b/4  ENDCOLLECTIVE  !P87?T
14d/4  EXIT{,.KEEPREFCOUNT,.PREEMPTED,?@84}{.NO_ATEXIT@86}  !P87?T
118/4  NOP
148/1  WARPSYNC.COLLECTIVE  !P87?T, R24, <branch>  86=1
148/1  WARPSYNC{,.EXCLUSIVE@85}  !P87?T, R24
005/4  CS2R{.32,@80}  Rd, <special>
119/4  S2R  Rd, <special>
1c3/4u  S2UR  UR16, <special>
"""

UNIFORM = """
090/14u  UIADD3  UR16, UP81?, UP84?, -UR24, -URb:i, -URc  74=0, 91=1, 77:4=15, 87:4=15
090/14u  UIADD3.X  UR16, UP81?, UP84?, ~UR24, ~URb:i, ~URc, !UP87, !UP77  74=1, 91=1
091/14u  ULEA  UR16, UP81?, -UR24, -URb, 0x75:5  91=1, 74=0, 80=0, 64:8=63, 87:4=15
091/14u  ULEA.HI  UR16, UP81?, -UR24, -URb, URc, 0x75:5  91=1, 74=0, 80=1, 87:4=15
0a4/14u  UIMAD{.U32,@73}  UR16, UR24, URb:i, -URc  91=1, 74=0, 81:3=7, 87:4=15
08c/14u  UISETP{*compare@76}{.U32,@73}{*logic@74}  UP81, UP84, UR24, URb:i, !UP87  72=0, 91=1, 68:4=7
092/14u  ULOP3.LUT{.PAND@80}  UP81?, UR16, UR24, URb, URc, 0x72:8, !UP87  91=1
099/124u  USHF{.L,.R@76}{.W@75}{.S64,.U64,.S32,.U32@73}{.HI@80}  UR16, UR24, URb, URc  91=1
0b9/5u  ULDC{*size@73}  UR16, URb
082/46u  UMOV  UR16, URb
"""

TABLES = (FLOATING, HALF, INTEGER, MEMORY, CONTROL, UNIFORM)
